"""The configuration of a relay: address, storage and features."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from .addresses import TrustedProxies
from .errors import RelayConfigError
from .limits import RelayLimits
from .registration import REGISTRATION_MODES, RegistrationMode


@dataclass(frozen=True, slots=True)
class RelayConfig:
    data: Path
    host: str = "127.0.0.1"
    port: int = 3005
    # Both and a host name are required to listen on more than this machine.
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    host_name: str = ""
    # The URL for devices, if a proxy is in front of the relay.
    public_url: str = ""
    # The folder of the page, with an index.html.
    static: Path | None = None
    # "fsync" survives a power loss, "os" only a crash of the process.
    durability: str = "fsync"
    # Refuse logins with a challenge that the client chose itself.
    nonce_only: bool = False
    # Who may create an account: "open", "invite" or "closed". Empty: "open" for a relay that only
    # this machine can reach, else "invite".
    registration: RegistrationMode | Literal[""] = ""
    # Addresses and networks of proxies whose X-Forwarded-For is trusted.
    trusted_proxies: tuple[str, ...] = ()
    limits: RelayLimits = field(default_factory=RelayLimits)

    def __post_init__(self) -> None:
        """Raises RelayConfigError."""
        if self.durability not in ("fsync", "os"):
            raise RelayConfigError(f'durability is "fsync" or "os", not {self.durability!r}')
        if self.registration and self.registration not in REGISTRATION_MODES:
            raise RelayConfigError(
                f'registration is "open", "invite" or "closed", not {self.registration!r}'
            )
        TrustedProxies(self.trusted_proxies)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise RelayConfigError("TLS needs both: give a certificate and its key")
        if not is_loopback(self.host) and not (self.tls_certificate and self.host_name):
            raise RelayConfigError(
                f"{self.host} can be reached by others: give a TLS certificate, its key and a host"
                " name, or listen on 127.0.0.1"
            )
        if self.static is not None and not (self.static / "index.html").is_file():
            raise RelayConfigError(f"{self.static} has no index.html: name the folder of the page")

    @property
    def is_public(self) -> bool:
        """Whether other machines can reach it, directly or through a proxy."""
        if self.trusted_proxies:
            return True
        public = urlsplit(self.public_url).hostname or "" if self.public_url else "localhost"
        return not (is_loopback(self.host) and is_loopback(public))

    @property
    def registration_mode(self) -> RegistrationMode:
        return self.registration or ("invite" if self.is_public else "open")

    def notices(self) -> list[str]:
        """Return what the operator should know at startup."""
        notices = []
        if self.registration_mode == "invite":
            notices.append(
                "New accounts need an invite; make one with `crabtalk-web relay invites create`."
            )
        elif self.registration_mode == "closed":
            notices.append("No new accounts are taken.")
        elif self.is_public:
            notices.append("Anybody who reaches it can make an account (registration = open).")
        if self.public_url and not self.trusted_proxies:
            notices.append(
                "Everybody who comes through the proxy counts as one address; name the proxy in"
                " trusted_proxies to tell them apart."
            )
        return notices

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
