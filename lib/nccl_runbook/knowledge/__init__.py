"""Tables as data, one TOML file a subject, and their loaders. No opinion on any machine."""
