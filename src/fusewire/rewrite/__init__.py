"""Rewriting: rules in tables, the engine that applies them, and passes over whole graphs."""
