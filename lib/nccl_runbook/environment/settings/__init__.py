"""Settings one by one and together: what each value does, what contradicts, and what the host limits."""
