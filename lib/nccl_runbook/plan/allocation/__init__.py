"""Allocation strings and launch lines, before they are placed."""
