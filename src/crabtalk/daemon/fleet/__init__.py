"""The fleet: what several daemons on one PostgreSQL database tell each other."""
