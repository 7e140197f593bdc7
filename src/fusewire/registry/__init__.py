"""Find backends, frontends and extensions."""
