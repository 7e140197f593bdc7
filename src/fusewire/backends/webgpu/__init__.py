"""WebGPU through wgpu-py: our own kernels on Vulkan, Metal and Direct3D 12."""
