"""Library nodes: a spec for each operator that is no loop nest, with its exact work, its reference and its loop nest if it has one."""
