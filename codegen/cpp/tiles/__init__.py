"""Register tiles: vectors of GCC, and the matrix unit."""
