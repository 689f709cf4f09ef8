"""What this package adds to dcir: an operator with its kernel, and a pass; each is a file, named in ``pyproject.toml``."""
