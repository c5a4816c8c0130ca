"""Handlers: one method for each request on the wire, grouped by what they are about."""
