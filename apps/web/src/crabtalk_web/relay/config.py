"""Configuration of a relay: where it listens, where it keeps things, what it serves."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from .errors import RelayConfigError
from .limits import Limits


@dataclass(frozen=True, slots=True)
class RelayConfig:
    data: Path
    host: str = "127.0.0.1"
    port: int = 3005
    # Both, and a name, before it listens anywhere but on this machine.
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    host_name: str = ""
    # How devices reach it, when something stands in front of it.
    public_url: str = ""
    # The page: a folder with an index.html.
    static: Path | None = None
    # "fsync" survives power loss, "os" the death of the process.
    durability: str = "fsync"
    # Refuse logins that sign a challenge of the client's own choosing.
    nonce_only: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raises RelayConfigError."""
        if self.durability not in ("fsync", "os"):
            raise RelayConfigError(f'durability is "fsync" or "os", not {self.durability!r}')
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise RelayConfigError("TLS needs both: give a certificate and its key")
        if not is_loopback(self.host) and not (self.tls_certificate and self.host_name):
            raise RelayConfigError(
                f"{self.host} can be reached by others: give a TLS certificate, its key and a host"
                " name, or listen on 127.0.0.1"
            )
        if self.static is not None and not (self.static / "index.html").is_file():
            raise RelayConfigError(f"{self.static} has no index.html: name the folder of the page")

    def tls(self) -> ssl.SSLContext | None:
        if self.tls_certificate is None or self.tls_key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_certificate, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise RelayConfigError(
                f"cannot use {self.tls_certificate} with {self.tls_key}: {error}; correct the paths"
            ) from None
        return context

    def url(self, port: int) -> str:
        if self.public_url:
            return self.public_url.rstrip("/")
        name = self.host_name or (f"[{self.host}]" if ":" in self.host else self.host)
        return f"{'https' if self.tls_certificate else 'http'}://{name}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
