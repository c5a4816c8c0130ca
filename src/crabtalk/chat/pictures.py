"""Pictures in a message: a path in the text, which the agent's `read` tool opens.

The wire carries only text. A file dropped on the terminal arrives as a shell-quoted path; a picture
on the clipboard is first saved in the home.
"""

import asyncio
import shlex
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})
MAX_BYTES = 3_750_000  # the limit of `read`
COMMAND_TIMEOUT = 3.0

# Each prints the picture on the clipboard, if there is one and its desktop is in use.
CLIPBOARD_COMMANDS = (
    ("wl-paste", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)


def parse_dropped_path(text: str) -> str | None:
    """Return the path of a picture dropped on the terminal; None for any other text."""
    text = text.strip()
    if not text or "\n" in text or len(text) > 4096:
        return None
    if text.startswith("file://"):
        words = [unquote(urlsplit(text).path)]
    else:
        try:
            words = shlex.split(text)
        except ValueError:
            return None
    if len(words) != 1:
        return None
    path = Path(words[0]).expanduser()
    is_picture = path.suffix.lower() in SUFFIXES and path.is_absolute()
    with suppress(OSError):
        return str(path) if is_picture and path.is_file() else None
    return None


async def save_clipboard_picture(folder: Path) -> Path | None:
    """Save the picture on the clipboard in `folder`; return None if there is none.

    Cancelled, it leaves at most the folder behind.
    """
    for command in CLIPBOARD_COMMANDS:
        data = await read_command_output(command)
        if data.startswith(b"\x89PNG") and len(data) <= MAX_BYTES:
            return await asyncio.to_thread(save_picture, folder, data)
    return None


async def read_command_output(command: tuple[str, ...]) -> bytes:
    """Return the command's output; empty if it is missing, fails or times out."""
    quiet = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=quiet, stdout=asyncio.subprocess.PIPE, stderr=quiet
        )
    except OSError:
        return b""
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            data, _ = await process.communicate()
            return data if process.returncode == 0 else b""
    except TimeoutError:
        return b""
    finally:
        with suppress(ProcessLookupError):
            process.kill()


def save_picture(folder: Path, data: bytes) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 1000:03}.png"
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path
