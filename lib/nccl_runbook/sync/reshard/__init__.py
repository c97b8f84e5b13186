"""Several trainer ranks: straight to the engine ranks, against gathered and broadcast."""
