"""Moves to logs, messages and triage."""
