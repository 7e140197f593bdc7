"""Records that outlive a process: times, verdicts, quarantine, artifacts, saved plans."""
