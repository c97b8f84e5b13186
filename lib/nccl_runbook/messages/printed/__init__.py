"""What ranks of our own printed."""
