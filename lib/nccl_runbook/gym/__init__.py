"""The gym: real jobs with a mistake, or without, and whether `diagnose` is right about them."""
