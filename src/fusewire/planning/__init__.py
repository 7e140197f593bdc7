"""Plan where nodes run: targets, claims, partitions, candidates."""
