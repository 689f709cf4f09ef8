"""What does the forward keep for the backward? The joint graph prepared, cut, and looked at against memory."""
