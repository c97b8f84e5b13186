"""Everything once, then what changed."""
