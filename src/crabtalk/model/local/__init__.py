"""The local model: its download, and the child process that runs it."""
