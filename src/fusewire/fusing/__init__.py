"""Fuse kernels of a graph without compiling all of it."""
