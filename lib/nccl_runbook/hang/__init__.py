"""06: which rank did not come to a collective, from dumps, logs, stacks or a live look."""
