"""A live look at a hung job. Runs on the node: standard library only."""
