"""The `crabtalk-telegram` program: a client of the daemon that has people talk to agents in
Telegram."""

__version__ = "0.1.0"
