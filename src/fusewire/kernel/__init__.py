"""The loop-level form of a fused region: what printers of kernels stand on."""
