"""The targets: each one class that joins what the stages make of a network for it."""
