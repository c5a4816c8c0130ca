"""The local model: its installation, and the child process that runs it."""
