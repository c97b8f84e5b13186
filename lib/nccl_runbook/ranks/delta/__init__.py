"""Only the values that changed since the last sync."""
