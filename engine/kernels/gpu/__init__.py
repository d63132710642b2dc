"""Triton kernels of the forward pass on a GPU, each with a reference in torch beside it, and the batch that they read."""
