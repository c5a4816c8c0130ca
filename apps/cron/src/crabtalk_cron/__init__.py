"""The `crabtalk-cron` program: a client of the daemon that has agents run at set times."""

__version__ = "0.1.0"
