"""Base64 for bytes in JSON, in links and in QR codes.

The wire uses the standard alphabet with padding, links use the URL alphabet without. Input that is
not exactly in that form is None: a lenient decoder would give two texts the same meaning.
"""

import base64
import binascii


def to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def from_base64(text: str) -> bytes | None:
    try:
        data = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:
        return None
    return data if to_base64(data) == text else None


def to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes | None:
    if "+" in text or "/" in text or "=" in text:
        return None
    padded = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
    return from_base64(padded)
