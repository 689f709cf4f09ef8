"""Code generation: kernels from specs, C++ through DaCe, the build."""
