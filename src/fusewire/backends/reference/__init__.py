"""The reference: NumPy, node by node; slow, always installed, and right by definition."""
