"""Amazon Bedrock's Converse API: one format for all models, signed requests, and answers as a
binary event stream.

A model's thinking may be signed and must then be sent back unchanged, so it is stored in `opaque`.
What applies to Claude everywhere is in `anthropic`; this package has only what Bedrock adds.
"""

from .credentials import read_credentials, read_region
from .dialect import BedrockDialect

__all__ = ["BedrockDialect", "read_credentials", "read_region"]
