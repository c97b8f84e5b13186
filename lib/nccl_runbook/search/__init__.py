"""Group testing, halving and replayed searches: over GPUs, settings or nodes."""
