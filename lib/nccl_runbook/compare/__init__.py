"""A against B: settings or commands, and the smallest failing form."""
