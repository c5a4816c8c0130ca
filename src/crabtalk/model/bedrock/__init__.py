"""Amazon Bedrock's Converse API: one form for every model there, signed requests, and answers as
a binary event stream.

What a model thought may come signed and then must go back as it came, so it travels in `opaque`.
What is true of Claude wherever it runs is in `anthropic`; here is only what Bedrock adds.
"""

from .credentials import read_credentials, read_region
from .dialect import BedrockDialect

__all__ = ["BedrockDialect", "read_credentials", "read_region"]
