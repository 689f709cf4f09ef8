"""The target "cuda": kernels as CUDA C++, what compiles them, and the driver that launches them."""
