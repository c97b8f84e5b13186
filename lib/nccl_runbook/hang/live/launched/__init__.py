"""Ranks that somebody started one by one: which of them are one job."""
