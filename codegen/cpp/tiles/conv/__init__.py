"""Convolutions and their gradients on register tiles."""
