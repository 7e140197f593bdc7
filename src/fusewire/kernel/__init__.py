"""The loop-level form of a fused region, which printers turn into kernels."""
