"""What passes that plan memory share: when values are alive, and blocks that several use one after the other."""
