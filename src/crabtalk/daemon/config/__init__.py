"""Configuration: reading config.toml and instruction files, and the setup commands."""
