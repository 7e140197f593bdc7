"""The graph that every program becomes. Knows no op and no backend."""
