"""Who may run what: targets, claims, partitions, candidates."""
