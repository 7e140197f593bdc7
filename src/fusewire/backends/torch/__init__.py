"""PyTorch in eager mode behind the contract."""
