"""PyTorch's compiler behind the contract: one shared library per region, built ahead of time."""
