"""What reads sources. Each is found by its entry point; none imports another."""
