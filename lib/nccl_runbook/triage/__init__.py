"""07: from what a job printed to what broke first; 00: what the reader brought."""
