"""WebGPU through wgpu-py: kernels of our own, on Vulkan, Metal and D3D12."""
