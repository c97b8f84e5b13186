"""Everything that somebody gave, read together and answered once: the strongest proof leads, and
the cheapest test follows."""
