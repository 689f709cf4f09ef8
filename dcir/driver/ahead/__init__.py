"""Ahead of time: modules and files compiled to .dcir files, for one size or for sizes within bounds."""
