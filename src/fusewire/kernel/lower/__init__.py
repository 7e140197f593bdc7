"""From a fused region of a graph to kernels: one table says how each op's element is computed."""
