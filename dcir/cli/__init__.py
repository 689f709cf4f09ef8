"""The command line: one file per verb, each a thin caller of the driver."""
