"""Files, both ways: sealed before they leave, opened when they come, and never trusted by name."""

import asyncio
import logging
import mimetypes
import os
import re
from base64 import b64encode
from pathlib import Path

from msgspec import UNSET, UnsetType

from crabtalk_web.sealing import BLOB_OVERHEAD, open_blob, seal_blob
from crabtalk_web.stream import Envelope, File, Image

from .entries import Inbound
from .errors import GatewayError, RelayRefusedError
from .identity import Identity
from .journal import Journal
from .relay_http import MOST_BYTES, RelayHttp
from .thumbhash import LARGEST, thumbhash

# Larger pictures are sent as files without a placeholder.
MOST_PIXELS = 50_000_000
NAME = 120
INBOX = Path(".crabtalk") / "inbox"

log = logging.getLogger(__name__)


class Files:
    def __init__(
        self, identity: Identity, journal: Journal, relay: RelayHttp, directory: Path
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._directory = directory

    async def send(self, path: Path) -> File:
        """The event of a file that is at the relay by then. Raises GatewayError for one that may
        not be sent, RelayAwayError and RelayRefusedError."""
        found, data = await asyncio.to_thread(self._read, path)
        sealed = await asyncio.to_thread(seal_blob, self._identity.blob_key, data)
        ref = await self._relay.upload(self._journal.book.session, sealed)
        kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        image = await asyncio.to_thread(picture, data) if kind.startswith("image/") else UNSET
        return File(ref=ref, name=found.name, size=len(data), mime_type=kind, image=image)

    def _read(self, path: Path) -> tuple[Path, bytes]:
        """Only what is under the directory, wherever a link may lead."""
        directory = self._directory.resolve()
        try:
            found = (directory / path.expanduser()).resolve(strict=True)
            if not found.is_relative_to(directory) or not found.is_file():
                raise GatewayError(f"{path} is not a file under {directory}; copy it there")
            if found.stat().st_size > MOST_BYTES - BLOB_OVERHEAD:
                raise GatewayError(f"{path} is larger than a relay keeps; send a part of it")
            return found, found.read_bytes()
        except OSError as error:
            raise GatewayError(f"cannot read {path}: {error.strerror}") from None

    async def fetch(self, inbound: Inbound) -> list[Path]:
        """Where the files of a message are now. Those that cannot be had are left out. Raises
        RelayAwayError."""
        found: list[Path] = []
        for envelope in inbound.files:
            try:
                found.append(await self._fetch(envelope))
            except (RelayRefusedError, GatewayError, OSError) as error:
                log.warning("a file of a device is left out: %s", error)
        return found

    async def _fetch(self, envelope: Envelope) -> Path:
        event = envelope.ev
        assert isinstance(event, File)  # noqa: S101 - the inbox keeps no others
        path = self._place(envelope.id, event.name)
        if await asyncio.to_thread(path.is_file):
            return path  # before a crash, it had come this far
        sealed = await self._relay.download(self._journal.book.session, event.ref)
        data = open_blob(self._identity.blob_key, sealed)
        if data is None:
            raise GatewayError("a file cannot be opened: it was sealed for somebody else")
        await asyncio.to_thread(keep, path, data)
        return path

    def _place(self, envelope: str, name: str) -> Path:
        folder = re.sub(r"[^0-9A-Za-z-]", "", envelope)[:64] or "file"
        return self._directory / INBOX / folder / safe_name(name)


def safe_name(name: str) -> str:
    """A name, whatever somebody called it: no path, nothing hidden, nothing that commands."""
    last = re.split(r"[/\\]", name)[-1]
    shown = "".join(c if c.isprintable() and c not in '<>:"|?*' else "_" for c in last)
    shown = shown.encode(errors="replace").decode().strip(" .")
    stem, dot, suffix = shown.rpartition(".")
    if dot and len(suffix) <= 10:
        return f"{stem[: NAME - len(suffix)]}.{suffix}" if stem else f"file.{suffix}"
    return shown[:NAME] or "file"


def keep(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{os.getpid()}.part")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    aside.replace(path)


def picture(data: bytes) -> Image | UnsetType:
    """Size and placeholder; UNSET unless all of it can be known."""
    from io import BytesIO

    from PIL import Image as Pictures
    from PIL import ImageOps

    try:
        with Pictures.open(BytesIO(data)) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                return UNSET
            upright = ImageOps.exif_transpose(opened)
            width, height = upright.size
            small = upright.convert("RGBA")
            small.thumbnail((LARGEST, LARGEST))
            hashed = thumbhash(small.width, small.height, small.tobytes())
    except (OSError, ValueError, SyntaxError, Pictures.DecompressionBombError):
        return UNSET
    return Image(width=width, height=height, thumbhash=b64encode(hashed).decode())
