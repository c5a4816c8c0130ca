"""The daemon process: home, logs, startup, main loop, and the commands that talk to it."""
