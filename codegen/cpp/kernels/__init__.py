"""Emitters of C++ kernels, one file per kind of node."""
