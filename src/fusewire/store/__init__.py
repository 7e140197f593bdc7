"""The cache: content-addressed, checked before use, safe to lose."""
