"""Files, both ways: never trusted by name, and never from outside the conversation's directory.

Each sender has one, `<home>/files/<sender>`: turns work there, what people send is in its `inbox`,
and what agents send has to be in it. The daemon computes the same path and lets nobody else's run
into it.
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

MAX_NAME_BYTES = 160  # bytes, so that there is room for what is put around it
INBOX = "inbox"
# Of one file, and of all in one inbox; the oldest make room.
MAX_FILE_BYTES = 50 * 1024 * 1024
MAX_INBOX_BYTES = 256 * 1024 * 1024
MAX_ATTACHMENTS = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SenderFiles:
    home: Path
    service: ChatService
    most_bytes: int = MAX_FILE_BYTES
    most_inbox: int = MAX_INBOX_BYTES

    def directory_for(self, sender: str) -> Path:
        return get_sender_folder(self.home, sender)

    async def prepare_directory(self, sender: str) -> Path:
        """The directory of a conversation, which is there then. Raises OSError."""
        directory = self.directory_for(sender)
        earlier = self.home / self.service.name / "files" / make_slug(sender)
        await asyncio.to_thread(move_old_folder, earlier, directory)
        await asyncio.to_thread(make_private_directory, directory)
        return directory

    async def fetch_attachments(self, sender: str, update: Update) -> list[str]:
        """A line for each file of a message: where it is, or why it could not be had.

        Raises what the service raises when it is to be tried again: TryLater and Away.
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
            await asyncio.to_thread(prune_inbox, folder, self.most_inbox)
        return lines

    async def _fetch_attachment(self, attachment: Attachment, path: Path) -> str:
        if attachment.size > self.most_bytes:
            return f"- {path.name}: not fetched, larger than {self.most_bytes} bytes"
        if await asyncio.to_thread(path.is_file):
            return f"- {path}"  # before a crash, it had come this far
        aside = path.with_name(f".{path.name}.part")
        try:
            await asyncio.to_thread(make_private_directory, path.parent)
            await asyncio.to_thread(aside.unlink, missing_ok=True)
            await self.service.fetch(attachment, aside)
            size = (await asyncio.to_thread(aside.stat)).st_size
            if size > self.most_bytes:
                await asyncio.to_thread(aside.unlink)
                return f"- {path.name}: not kept, larger than {self.most_bytes} bytes"
            await asyncio.to_thread(aside.chmod, 0o600)
            await asyncio.to_thread(aside.replace, path)
        except (RejectedError, OSError) as error:
            log.warning("a file of a message is left out: %s", error)
            return f"- {path.name}: could not be fetched"
        return f"- {path}"

    def resolve_outgoing(self, sender: str, path: str) -> Path:
        """A file that may be sent. Raises GatewayError."""
        directory = self.directory_for(sender).resolve()
        try:
            found = (directory / Path(path).expanduser()).resolve(strict=True)
            if not found.is_relative_to(directory) or not found.is_file():
                raise GatewayError(f"{path} is not a file under {directory}; copy it there")
            if found.stat().st_size > self.service.limits.upload:
                raise GatewayError(f"{path} is larger than {self.service.name} takes")
        except (OSError, ValueError, RuntimeError) as error:
            raise GatewayError(f"cannot read {path}: {error}") from None
        return found


def make_private_directory(directory: Path) -> None:
    """With those above it, none of which others may look into."""
    if not directory.is_dir():
        make_private_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def move_old_folder(earlier: Path, directory: Path) -> None:
    """Moves what an earlier release kept for a sender into the sender's folder.

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
    except OSError as error:  # a name that both have, or a system without links
        log.warning("files of an earlier release are left in %s: %s", earlier, error)


def prune_inbox(folder: Path, most: int) -> None:
    """Removes what came longest ago, until the inbox that `folder` is in holds no more than so
    much. What came last always stays."""
    inbox = folder.parent
    others = sorted(
        (one for one in inbox.iterdir() if one.is_dir() and one != folder),
        key=lambda one: one.stat().st_mtime_ns,
    )
    left = sum(measure_folder(one) for one in (folder, *others))
    for one in others:
        if left <= most:
            return
        left -= measure_folder(one)
        shutil.rmtree(one, ignore_errors=True)


def measure_folder(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.iterdir()) if folder.is_dir() else 0


def make_slug(text: str) -> str:
    """Readable, and no two alike."""
    shown = re.sub(r"[^0-9A-Za-z-]+", "-", text).strip("-")[:40]
    return f"{shown}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def sanitize_file_name(name: str) -> str:
    """A name, whatever somebody called it: no path, nothing hidden, nothing that commands."""
    last = re.split(r"[/\\]", name)[-1]
    shown = "".join(c if c.isprintable() and c not in '<>:"|?*' else "_" for c in last)
    shown = shown.encode(errors="replace").decode().strip(" .")
    stem, dot, suffix = shown.rpartition(".")
    if dot and stem and len(suffix) <= 10:
        return f"{truncate_name(stem)}.{suffix}"
    return truncate_name(shown) or "file"


def truncate_name(name: str) -> str:
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore").strip()
