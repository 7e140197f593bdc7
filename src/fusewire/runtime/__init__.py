"""Running: what the user calls, and what it gives back."""
