"""The four tiers: passes that rewrite the network SDFG, one per file, and the pipelines that order them."""
