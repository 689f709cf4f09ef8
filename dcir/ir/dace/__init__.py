"""DaCe's side of the language: the library node, its expansion to maps and tasklets, and networks run through stock DaCe."""
