"""Read what others left behind: text to facts, nothing executed."""
