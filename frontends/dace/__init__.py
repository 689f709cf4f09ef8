"""Programs of DaCe as operators of PyTorch modules."""
