"""What one set of options shares, and how a source becomes an entry of a program."""
