"""Anthropic's messages API: Claude, and other servers that implement it.

Claude's thinking is signed and must be sent back unchanged, so it is stored in `opaque`.
"""

from .dialect import AnthropicDialect
from .generations import parse_generation

__all__ = ["AnthropicDialect", "parse_generation"]
