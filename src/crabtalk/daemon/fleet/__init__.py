"""The fleet: communication between daemons that share a PostgreSQL database."""
