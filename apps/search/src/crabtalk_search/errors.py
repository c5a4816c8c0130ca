"""Errors of the tools, each a sentence. The failure of one engine is not an error of a tool."""


class SearchError(Exception):
    """The query cannot be sent."""


class EngineError(Exception):
    """One engine gave no answer; others may have."""


class FetchError(Exception):
    """The page cannot be read."""


class SearchConfigError(Exception):
    """The configuration is not valid."""
