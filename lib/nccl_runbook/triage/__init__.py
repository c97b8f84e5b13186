"""07: from what a job printed to what broke first."""
