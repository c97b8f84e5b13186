"""07: what broke first, from what a job printed."""
