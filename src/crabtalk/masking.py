"""Masking: removes known secrets, and text that looks like one, from texts."""

import re
from collections.abc import Iterable
from functools import cache

MASK = "********"
SHORTEST_SECRET = 6
SENSITIVE_NAMES = (
    r"(?:api[_-]?key|authorization|secret_access_key|client_secret|password"
    r"|(?:access|refresh|session)_token)"
)
# Follows a name: a colon or equals sign, or a comma if it is quoted. Also in bytes and nested JSON.
ASSIGNMENT = r"""(?:\\*["']\s*[:=,]|\s*[:=])\s*(?:b(?=["']))?\\*"""
# A quoted string, or a word.
SENSITIVE_VALUE = r"""(?:(["'])(?:\\.|(?!\2).)*|[^\s,;&"'(){}\[\]]+)"""
SECRET_PATTERNS = (
    # An unquoted value goes to the end of the line: some schemes have several parts.
    (rf"(authorization{ASSIGNMENT})(?:([\"'])(?:(?!\2).)*|[^\r\n]+)", rf"\1\2{MASK}"),
    (rf"({SENSITIVE_NAMES}{ASSIGNMENT}){SENSITIVE_VALUE}", rf"\1\2{MASK}"),
    (r"(secret_access_key\s+)[^\s,;:=\"']+", rf"\1{MASK}"),
    (r"(\bbearer\s+)[^\s,;\"']+", rf"\1{MASK}"),
    (r"(?<![a-z0-9])sk-[\w-]{8,}", MASK),
    (r"(://)[^\s/?#\"']*@", rf"\1{MASK}@"),
    (r"([?&]key=)[^\s&#\"']+", rf"\1{MASK}"),
)
# Every pattern needs one of these words, and most lines have none.
HINT_PATTERN = r"key|authorization|client_secret|password|_token|bearer|sk-|@"


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace the given secrets, and text that looks like a secret."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, MASK)
    if compile_pattern(HINT_PATTERN).search(text):
        for pattern, replacement in SECRET_PATTERNS:
            text = compile_pattern(pattern).sub(replacement, text)
    return text


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile when first used: compiling all of them at start would cost milliseconds."""
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds a secret."""
    return compile_pattern(SENSITIVE_NAMES).search(name) is not None
