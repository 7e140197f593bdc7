"""How each ATen op becomes ours: one table for each family."""
