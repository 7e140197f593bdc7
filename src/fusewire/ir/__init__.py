"""The graph every program becomes. Knows no op and no backend."""
