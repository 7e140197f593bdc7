"""Build a candidate and run it for the first time, in a child process."""
