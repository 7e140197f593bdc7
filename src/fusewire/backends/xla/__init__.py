"""XLA through jax: one compiled program per region."""
