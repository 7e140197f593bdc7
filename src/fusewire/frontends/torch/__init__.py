"""Read PyTorch modules and exported programs."""
