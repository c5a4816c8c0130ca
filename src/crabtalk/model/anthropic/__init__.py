"""Anthropic's messages: Claude, and the servers that speak as Anthropic does.

What Claude thought comes signed and must go back as it came, so it travels in `opaque`.
"""

from .dialect import AnthropicDialect
from .generations import parse_generation

__all__ = ["AnthropicDialect", "parse_generation"]
