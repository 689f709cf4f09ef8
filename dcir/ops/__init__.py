"""The words: one page per operator with its schema, lowering, reference, exact work and samples."""
