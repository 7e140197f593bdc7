"""XLA, through jax: one compiled program a region."""
