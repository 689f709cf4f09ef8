"""Are the numbers right? Checks against the interpreter and eager PyTorch, the search for what is wrong, reproducers."""
