"""Matrix products on register tiles."""
