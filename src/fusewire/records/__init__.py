"""What is kept between processes: measurements, verdicts, quarantine, saved plans."""
