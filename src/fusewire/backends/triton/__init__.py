"""Triton: the kernels of a fused region as a Triton module, for NVIDIA and AMD GPUs."""
