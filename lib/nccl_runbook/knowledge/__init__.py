"""Tables as data, one TOML file a subject, and their loaders. Imports nothing of ours."""
