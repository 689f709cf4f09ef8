"""Reports: what was done to a network, in text and as data."""
