"""Pairing: a machine gets into an account when its QR code is scanned.

The machine makes a key pair for one pairing and shows the public half; a device of the account
answers with a box that only the machine can open. The box holds the master secret (the older form,
and how a device links another) or, for machines that ask for it, only the public key that data keys
are wrapped for.
"""

from dataclasses import dataclass, field

from nacl.public import PrivateKey

from .base64_encoding import from_base64, from_base64url, to_base64, to_base64url
from .boxes import open_box, seal_box
from .keys import KEY_SIZE

TERMINAL_LINK = "happy://terminal?"
ACCOUNT_LINK = "happy:///account?"
VERSION_2 = b"\0"


@dataclass(frozen=True, slots=True)
class PairingApproval:
    """The answer of the device. Exactly one of the two is set."""

    master_secret: bytes | None = field(default=None, repr=False)
    content_public_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class PairingSecret:
    """A machine's secret for one pairing."""

    secret: bytes = field(default_factory=lambda: bytes(PrivateKey.generate()), repr=False)

    @property
    def public_key(self) -> bytes:
        return bytes(PrivateKey(self.secret).public_key)

    @property
    def terminal_link(self) -> str:
        return TERMINAL_LINK + to_base64url(self.public_key)

    @property
    def account_link(self) -> str:
        return ACCOUNT_LINK + to_base64url(self.public_key)

    def page_link(self, page: str) -> str:
        """Return a link for a browser, with the key in the fragment, which browsers do not send to
        the server."""
        return f"{page.rstrip('/')}/terminal/connect#key={to_base64url(self.public_key)}"

    def open_approval(self, response: str) -> PairingApproval | None:
        plain = self._open(response)
        if plain is None:
            return None
        if len(plain) == KEY_SIZE:
            return PairingApproval(master_secret=plain)
        if len(plain) == 1 + KEY_SIZE and plain[:1] == VERSION_2:
            return PairingApproval(content_public_key=plain[1:])
        return None

    def open_token(self, sealed: str) -> str | None:
        """Return the token, if the relay sealed it for this key."""
        plain = self._open(sealed)
        try:
            return None if plain is None else plain.decode("ascii")
        except UnicodeDecodeError:
            return None

    def _open(self, text: str) -> bytes | None:
        bundle = from_base64(text)
        return None if bundle is None else open_box(self.secret, bundle)


def approve_with_secret(public_key: bytes, master_secret: bytes) -> str:
    return to_base64(seal_box(public_key, master_secret))


def approve_with_content_key(public_key: bytes, content_public_key: bytes) -> str:
    return to_base64(seal_box(public_key, VERSION_2 + content_public_key))


def approve_device_link(public_key: bytes, master_secret: bytes) -> str:
    """Approve another device of the same person, which then knows the master secret."""
    return approve_with_secret(public_key, master_secret)


def parse_link_key(link: str) -> bytes | None:
    """Return the public key in any of the links above; None for other texts."""
    for start in (TERMINAL_LINK, ACCOUNT_LINK):
        if link.startswith(start):
            break
    else:
        prefix, start, _ = link.partition("#key=")
        start = prefix + start if start else ""
    key = from_base64url(link[len(start) :]) if start else None
    return key if key is not None and len(key) == KEY_SIZE else None
