"""The page of `dcir view`: its files, the server that hands them out, and the report that holds all of it in one file."""
