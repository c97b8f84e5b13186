"""Hypotheses about a log: how each is weighed, and what no message shows."""
