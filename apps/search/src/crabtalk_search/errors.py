"""What the tools cannot do, in a sentence. What is wrong with one engine is no such thing."""


class SearchError(Exception):
    """The question cannot be asked."""


class EngineError(Exception):
    """One engine gave no answer; the others may."""


class FetchError(Exception):
    """The page cannot be read."""


class SearchConfigError(Exception):
    """The configuration does not say what to do."""
