"""Images of characters and their Unicode names, each found by the other."""
