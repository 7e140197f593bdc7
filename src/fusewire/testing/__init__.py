"""For people who write ops and backends: the suites that ours pass, to run on theirs."""
