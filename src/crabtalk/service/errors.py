"""Errors of a component or its unit. Each has a sentence that ends in what to do next."""


class ComponentError(Exception):
    """The component cannot run here."""


class UnitError(Exception):
    """The service manager refused a command, or has no syntax for what the unit needs."""
