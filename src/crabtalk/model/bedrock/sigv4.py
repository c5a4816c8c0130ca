"""AWS Signature Version 4: signs requests, which AWS services check instead of a key in a header.

It does no I/O; the time is a parameter. S3 is not supported: it encodes paths by its own rules.
"""

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, urlsplit

ALGORITHM = "AWS4-HMAC-SHA256"
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """A key pair, with a token if it is temporary; or a bearer token, which needs no signing."""

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    bearer: str = field(default="", repr=False)


def sign_request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    credentials: AwsCredentials,
    region: str,
    service: str,
    moment: float,
) -> dict[str, str]:
    """Return `headers`, all of them signed, plus the date, the session token and the signature.

    `url` must be escaped exactly as it is sent: the service computes the signature of what it
    receives.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment))
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    signed = {**headers, "X-Amz-Date": stamp}
    if credentials.session_token:
        signed["X-Amz-Security-Token"] = credentials.session_token
    names, canonical = build_canonical_request(method, url, signed, body)
    to_sign = "\n".join([ALGORITHM, stamp, scope, hashlib.sha256(canonical).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = compute_hmac(key, part)
    signature = compute_hmac(key, to_sign).hex()
    signed["Authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return signed


def build_canonical_request(
    method: str, url: str, headers: Mapping[str, str], body: bytes
) -> tuple[str, bytes]:
    """Return the names of the signed headers, and the request in AWS's canonical form."""
    parts = urlsplit(url)
    values = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    values["host"] = format_host(parts)
    names = ";".join(sorted(values))
    lines = [
        method,
        # The escaped path is escaped once more, as AWS requires for all services but S3.
        quote(parts.path or "/", safe="/~"),
        "&".join(f"{name}={value}" for name, value in sorted(split_query(parts))),
        *(f"{name}:{values[name]}" for name in sorted(values)),
        "",
        names,
        hashlib.sha256(body).hexdigest(),
    ]
    return names, "\n".join(lines).encode()


def split_query(parts: SplitResult) -> list[tuple[str, str]]:
    if not parts.query:
        return []
    split = (pair.partition("=") for pair in parts.query.split("&"))
    return [(name, value) for name, _, value in split]


def format_host(parts: SplitResult) -> str:
    """Format the Host header as HTTP clients do: with the port only if it is not the default."""
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    if parts.port is None or parts.port == DEFAULT_PORTS.get(parts.scheme):
        return host
    return f"{host}:{parts.port}"


def compute_hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
