"""03 and 04: with how many ranks, on which GPUs and over which transports collectives fail."""
