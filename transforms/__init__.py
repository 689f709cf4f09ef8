"""Passes that rewrite the network SDFG, one per file, in folders by what they do, and the one order in which they run."""
