"""Triton: our fused kernels as a Triton module, for NVIDIA and AMD GPUs."""
