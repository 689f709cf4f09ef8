"""What part of an operator and of a network belongs to one image of a batch."""
