"""One thing run again and again: how often it fails, and whether it gets slower."""
