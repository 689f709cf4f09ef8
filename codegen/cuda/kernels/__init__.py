"""Emitters of CUDA kernels, one file a form of loop nests or a kind of node."""
