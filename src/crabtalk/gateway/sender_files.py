"""The files of senders. File names are not trusted, and no file outside a sender's folder is sent.

Each sender has a folder, `<home>/files/<sender>`: turns work there, files that people send are put
into its `inbox`, and an agent can send only files in it. The daemon computes the same path and
keeps the runs of other senders out of it.
"""

import asyncio
import hashlib
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from crabtalk.protocol import get_sender_folder

from .chat_service import Attachment, ChatService, RejectedError, Update
from .errors import GatewayError

MAX_NAME_BYTES = 160  # leaves room for a number in front and a suffix behind
INBOX = "inbox"
# Of one file, and of all files in one inbox; the oldest are removed.
MAX_FILE_BYTES = 50 * 1024 * 1024
MAX_INBOX_BYTES = 256 * 1024 * 1024
MAX_ATTACHMENTS = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SenderFiles:
    home: Path
    service: ChatService
    max_bytes: int = MAX_FILE_BYTES
    max_inbox_bytes: int = MAX_INBOX_BYTES

    def directory_for(self, sender: str) -> Path:
        return get_sender_folder(self.home, sender)

    async def prepare_directory(self, sender: str) -> Path:
        """Make the folder of a sender, if it is missing. Raises OSError."""
        directory = self.directory_for(sender)
        earlier = self.home / self.service.name / "files" / make_slug(sender)
        await asyncio.to_thread(move_old_folder, earlier, directory)
        await asyncio.to_thread(make_private_directory, directory)
        return directory

    async def fetch_attachments(self, sender: str, update: Update) -> list[str]:
        """A line for each attachment: its path, or why it could not be fetched.

        Raises RetryLaterError and DeliveryUnknownError, as the service does.
        """
        if not update.attachments:
            return []
        folder = (await self.prepare_directory(sender)) / INBOX / make_slug(update.id)
        lines: list[str] = []
        for number, attachment in enumerate(update.attachments[:MAX_ATTACHMENTS]):
            name = sanitize_file_name(attachment.name)
            path = folder / (name if number == 0 else f"{number}-{name}")
            lines.append(await self._fetch_attachment(attachment, path))
        if await asyncio.to_thread(folder.is_dir):
            await asyncio.to_thread(prune_inbox, folder, self.max_inbox_bytes)
        return lines

    async def _fetch_attachment(self, attachment: Attachment, path: Path) -> str:
        if attachment.size > self.max_bytes:
            return f"- {path.name}: not fetched, larger than {self.max_bytes} bytes"
        if await asyncio.to_thread(path.is_file):
            return f"- {path}"  # it was fetched before a crash
        partial = path.with_name(f".{path.name}.part")
        try:
            await asyncio.to_thread(make_private_directory, path.parent)
            await asyncio.to_thread(partial.unlink, missing_ok=True)
            await self.service.fetch(attachment, partial)
            size = (await asyncio.to_thread(partial.stat)).st_size
            if size > self.max_bytes:
                await asyncio.to_thread(partial.unlink)
                return f"- {path.name}: not kept, larger than {self.max_bytes} bytes"
            await asyncio.to_thread(partial.chmod, 0o600)
            await asyncio.to_thread(partial.replace, path)
        except (RejectedError, OSError) as error:
            log.warning("a file of a message is left out: %s", error)
            return f"- {path.name}: could not be fetched"
        return f"- {path}"

    def resolve_outgoing(self, sender: str, path: str) -> Path:
        """A file that may be sent. Raises GatewayError."""
        directory = self.directory_for(sender).resolve()
        try:
            file = (directory / Path(path).expanduser()).resolve(strict=True)
            if not file.is_relative_to(directory) or not file.is_file():
                raise GatewayError(f"{path} is not a file under {directory}; copy it there")
            if file.stat().st_size > self.service.limits.upload:
                raise GatewayError(f"{path} is larger than {self.service.name} takes")
        except (OSError, ValueError, RuntimeError) as error:
            raise GatewayError(f"cannot read {path}: {error}") from None
        return file


def make_private_directory(directory: Path) -> None:
    """Make it and its missing parents, all with mode 0700."""
    if not directory.is_dir():
        make_private_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def move_old_folder(earlier: Path, directory: Path) -> None:
    """Move the files that an earlier release stored for a sender into the sender's folder.

    A link stays in its place, so that paths in old conversations still lead to the files.
    """
    if earlier.is_symlink() or not earlier.is_dir():
        return
    make_private_directory(directory)
    try:
        for child in list(earlier.iterdir()):
            if not os.path.lexists(directory / child.name):
                child.rename(directory / child.name)
        earlier.rmdir()
        earlier.symlink_to(os.path.relpath(directory, earlier.parent), target_is_directory=True)
    except OSError as error:  # both have a file of that name, or the system has no links
        log.warning("files of an earlier release are left in %s: %s", earlier, error)


def prune_inbox(folder: Path, max_bytes: int) -> None:
    """Remove the oldest folders until the inbox that contains `folder` has at most `max_bytes`.
    `folder` itself always stays."""
    inbox = folder.parent
    others = sorted(
        (subfolder for subfolder in inbox.iterdir() if subfolder.is_dir() and subfolder != folder),
        key=lambda subfolder: subfolder.stat().st_mtime_ns,
    )
    total = sum(measure_folder(subfolder) for subfolder in (folder, *others))
    for subfolder in others:
        if total <= max_bytes:
            return
        total -= measure_folder(subfolder)
        shutil.rmtree(subfolder, ignore_errors=True)


def measure_folder(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir()) if folder.is_dir() else 0


def make_slug(text: str) -> str:
    """A readable name that is different for different texts."""
    readable = re.sub(r"[^0-9A-Za-z-]+", "-", text).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def sanitize_file_name(name: str) -> str:
    """A safe file name: no path, not hidden, no characters that a shell or a system interprets."""
    last = re.split(r"[/\\]", name)[-1]
    cleaned = "".join(c if c.isprintable() and c not in '<>:"|?*' else "_" for c in last)
    cleaned = cleaned.encode(errors="replace").decode().strip(" .")
    stem, dot, suffix = cleaned.rpartition(".")
    if dot and stem and len(suffix) <= 10:
        return f"{truncate_name(stem)}.{suffix}"
    return truncate_name(cleaned) or "file"


def truncate_name(name: str) -> str:
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore").strip()
