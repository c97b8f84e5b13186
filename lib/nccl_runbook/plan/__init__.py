"""Allocation strings and launch lines of frameworks to ranks and GPUs."""
