"""Two runs: what changed since one worked, and which of it could explain the failure."""
