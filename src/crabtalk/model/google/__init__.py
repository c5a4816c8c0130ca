"""Google's Gemini API: `streamGenerateContent` with `alt=sse`."""

from .dialect import DEFAULT_BASE, GoogleDialect
from .encoding import FOREIGN_SIGNATURE

__all__ = ["DEFAULT_BASE", "FOREIGN_SIGNATURE", "GoogleDialect"]
