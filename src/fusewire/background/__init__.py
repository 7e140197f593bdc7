"""Compare engines behind a program that answers already."""
