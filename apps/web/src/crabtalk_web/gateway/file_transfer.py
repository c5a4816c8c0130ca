"""Files in both directions: sealed before upload, opened after download, and never trusted by
name."""

import asyncio
import logging
import mimetypes
import os
import re
from base64 import b64encode
from pathlib import Path

from msgspec import UNSET, UnsetType

from crabtalk_web.sealing import BLOB_OVERHEAD, open_blob, seal_blob
from crabtalk_web.stream import Envelope, FileEvent, ImagePreview

from .conversation_journal import ConversationJournal
from .errors import RelayRefusedError, WebGatewayError
from .journal_entries import InboundMessage
from .relay_http import MAX_FILE_BYTES, RelayHttp
from .session_identity import SessionIdentity
from .thumbhash import MAX_SIDE, compute_thumbhash

# Larger pictures are sent as files, without a placeholder.
MAX_PIXELS = 50_000_000
MAX_NAME = 120
INBOX_FOLDER = Path(".crabtalk") / "inbox"

log = logging.getLogger(__name__)


class FileTransfer:
    def __init__(
        self,
        identity: SessionIdentity,
        journal: ConversationJournal,
        relay: RelayHttp,
        directory: Path,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._directory = directory

    async def upload_file(self, path: Path) -> FileEvent:
        """Upload a file and return its event. Raises WebGatewayError for a file that may not be
        sent, RelayUnavailableError and RelayRefusedError."""
        resolved, data = await asyncio.to_thread(self._read, path)
        sealed = await asyncio.to_thread(seal_blob, self._identity.blob_key, data)
        ref = await self._relay.upload(self._journal.state.session, sealed)
        kind = mimetypes.guess_type(resolved.name)[0] or "application/octet-stream"
        image = (
            await asyncio.to_thread(describe_image, data) if kind.startswith("image/") else UNSET
        )
        return FileEvent(ref=ref, name=resolved.name, size=len(data), mime_type=kind, image=image)

    def _read(self, path: Path) -> tuple[Path, bytes]:
        """Read a file only if it is under the directory after resolving links."""
        directory = self._directory.resolve()
        try:
            resolved = (directory / path.expanduser()).resolve(strict=True)
            if not resolved.is_relative_to(directory) or not resolved.is_file():
                raise WebGatewayError(f"{path} is not a file under {directory}; copy it there")
            if resolved.stat().st_size > MAX_FILE_BYTES - BLOB_OVERHEAD:
                raise WebGatewayError(f"{path} is larger than a relay keeps; send a part of it")
            return resolved, resolved.read_bytes()
        except OSError as error:
            raise WebGatewayError(f"cannot read {path}: {error.strerror}") from None

    async def download_files(self, inbound: InboundMessage) -> list[Path]:
        """Return the local paths of a message's files. Files that cannot be fetched are left out.
        Raises RelayUnavailableError."""
        paths: list[Path] = []
        for envelope in inbound.files:
            try:
                paths.append(await self._download_file(envelope))
            except (RelayRefusedError, WebGatewayError, OSError) as error:
                log.warning("a file of a device is left out: %s", error)
        return paths

    async def _download_file(self, envelope: Envelope) -> Path:
        event = envelope.ev
        assert isinstance(event, FileEvent)  # noqa: S101 - the inbox keeps no others
        path = self._inbox_path(envelope.id, event.name)
        if await asyncio.to_thread(path.is_file):
            return path  # downloaded before a crash
        sealed = await self._relay.download(self._journal.state.session, event.ref)
        data = open_blob(self._identity.blob_key, sealed)
        if data is None:
            raise WebGatewayError("a file cannot be opened: it was sealed with another key")
        await asyncio.to_thread(write_private_file, path, data)
        return path

    def _inbox_path(self, envelope: str, name: str) -> Path:
        folder = re.sub(r"[^0-9A-Za-z-]", "", envelope)[:64] or "file"
        return self._directory / INBOX_FOLDER / folder / safe_name(name)


def safe_name(name: str) -> str:
    """Return a safe file name: no path, not hidden, and no special characters."""
    last = re.split(r"[/\\]", name)[-1]
    printable = "".join(c if c.isprintable() and c not in '<>:"|?*' else "_" for c in last)
    printable = printable.encode(errors="replace").decode().strip(" .")
    stem, dot, suffix = printable.rpartition(".")
    if dot and len(suffix) <= 10:
        return f"{stem[: MAX_NAME - len(suffix)]}.{suffix}" if stem else f"file.{suffix}"
    return printable[:MAX_NAME] or "file"


def write_private_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)


def describe_image(data: bytes) -> ImagePreview | UnsetType:
    """Return size and placeholder; UNSET if they cannot be determined."""
    from io import BytesIO

    from PIL import Image as Pictures
    from PIL import ImageOps

    try:
        with Pictures.open(BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                return UNSET
            upright = ImageOps.exif_transpose(image)
            width, height = upright.size
            thumbnail = upright.convert("RGBA")
            thumbnail.thumbnail((MAX_SIDE, MAX_SIDE))
            thumbhash = compute_thumbhash(thumbnail.width, thumbnail.height, thumbnail.tobytes())
    except (OSError, ValueError, SyntaxError, Pictures.DecompressionBombError):
        return UNSET
    return ImagePreview(width=width, height=height, thumbhash=b64encode(thumbhash).decode())
