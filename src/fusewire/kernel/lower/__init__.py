"""Lower a fused region to kernels; one table says how each op computes an element."""
