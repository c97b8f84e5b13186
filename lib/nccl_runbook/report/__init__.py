"""Show records; judge nothing."""
