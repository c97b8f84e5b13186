"""Whatever somebody brought, read together and answered once: the strongest proof leads, and the cheapest test follows."""
