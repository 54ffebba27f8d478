"""What ranks tell each other."""
