"""The `crabtalk` command: a client of the daemon, for people at a terminal and for scripts."""
