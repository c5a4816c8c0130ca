"""AWS Signature Version 4: what an AWS service checks instead of a key in a header.

Pure: the moment comes from outside. Written for Bedrock; S3 encodes paths by rules of its own and
is not served here.
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
    """A pair of keys, with a token if they are temporary; or a bearer, which needs no signing."""

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
    """`headers`, every one of them signed, plus the date, the session token and the signature.

    `url` has to be what goes over the wire, escape by escape: the service signs what it received.
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
    """The names of the headers in it, and the request in the one form both sides agree on."""
    parts = urlsplit(url)
    values = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    values["host"] = format_host(parts)
    names = ";".join(sorted(values))
    lines = [
        method,
        # Escaped once more, on top of the escapes it has: so says AWS for all but S3.
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
    """As HTTP clients put it into the Host header: the port only where it is not the usual one."""
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    if parts.port is None or parts.port == DEFAULT_PORTS.get(parts.scheme):
        return host
    return f"{host}:{parts.port}"


def compute_hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
