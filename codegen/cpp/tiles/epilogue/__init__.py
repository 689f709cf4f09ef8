"""What tiles do to their sums before they store them."""
