"""From the shards of several trainer ranks straight to those of the engine ranks."""
