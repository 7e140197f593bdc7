"""Test suites for authors of ops and backends: the same ones that ours pass."""
