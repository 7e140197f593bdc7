"""Backends, one folder per engine, found by entry point."""
