"""Rules that say what to change of a model's call and what it brings, one file a family, and how a changed call is run."""
