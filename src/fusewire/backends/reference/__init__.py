"""NumPy, node by node: slow, always there, and right by definition."""
