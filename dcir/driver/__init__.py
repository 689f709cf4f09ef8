"""The steps in order: the only floor that joins front ends, transformations, code generation and runtime."""
