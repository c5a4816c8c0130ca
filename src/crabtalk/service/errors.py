"""What a component or its unit cannot do, in a sentence that ends in what to do next."""


class ComponentError(Exception):
    """The component cannot run here."""


class UnitError(Exception):
    """The platform's service manager cannot be told this, or refused what it was told."""
