"""Masking: texts without the secrets in them, known ones and those that look like one."""

import re
from collections.abc import Iterable
from functools import cache

MASK = "********"
SHORTEST_SECRET = 6
SENSITIVE_NAMES = (
    r"(?:api[_-]?key|authorization|secret_access_key|client_secret|password"
    r"|(?:access|refresh|session)_token)"
)
# After a name: a colon or an equals sign, or a comma if it is quoted. Bytes and JSON in JSON too.
ASSIGNMENT = r"""(?:\\*["']\s*[:=,]|\s*[:=])\s*(?:b(?=["']))?\\*"""
# Up to the closing quote, or a word.
SENSITIVE_VALUE = r"""(?:(["'])(?:\\.|(?!\2).)*|[^\s,;&"'(){}\[\]]+)"""
SECRET_PATTERNS = (
    # Unquoted, its value is the rest of the line: some schemes have several parts.
    (rf"(authorization{ASSIGNMENT})(?:([\"'])(?:(?!\2).)*|[^\r\n]+)", rf"\1\2{MASK}"),
    (rf"({SENSITIVE_NAMES}{ASSIGNMENT}){SENSITIVE_VALUE}", rf"\1\2{MASK}"),
    (r"(secret_access_key\s+)[^\s,;:=\"']+", rf"\1{MASK}"),
    (r"(\bbearer\s+)[^\s,;\"']+", rf"\1{MASK}"),
    (r"(?<![a-z0-9])sk-[\w-]{8,}", MASK),
    (r"(://)[^\s/?#\"']*@", rf"\1{MASK}@"),
    (r"([?&]key=)[^\s&#\"']+", rf"\1{MASK}"),
)
# Each of them has one of these, and most lines have none.
HINT_PATTERN = r"key|authorization|client_secret|password|_token|bearer|sk-|@"


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Without the secrets, and without what looks like one."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, MASK)
    if compile_pattern(HINT_PATTERN).search(text):
        for shape, instead in SECRET_PATTERNS:
            text = compile_pattern(shape).sub(instead, text)
    return text


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """When first used, and so by the thread: all together they would cost a start milliseconds."""
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether what has this name is one."""
    return compile_pattern(SENSITIVE_NAMES).search(name) is not None
