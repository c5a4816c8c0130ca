"""Request handlers: one method for each request of the protocol, grouped by subject."""
