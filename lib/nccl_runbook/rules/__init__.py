"""Facts to findings: the only place with thresholds."""
