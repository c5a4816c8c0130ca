"""Exchanges between a client that waits for each answer and the daemon, stored as bytes."""
