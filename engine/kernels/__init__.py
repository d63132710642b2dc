"""Numba kernels of the forward pass on the CPU: quantised matrices, attention over pages, and what lies between them."""
