"""Buffers that users make, and what memory is in use."""
