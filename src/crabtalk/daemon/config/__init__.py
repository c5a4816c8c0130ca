"""Settings: what config.toml may say, what start and reload read, and the setup commands."""
