"""Build the message to an agent from words, standard input and files."""

import re
import select
import sys
from pathlib import Path

import click

from crabtalk.service.command_line import print_to_stderr, to_one_line

from .errors import CommandError

STDIN_WORD = "-"
# Bytes of the whole message: more than models read, and less than a frame holds.
MAX_MESSAGE_SIZE = 8 * 1024 * 1024
# Seconds without input after which a hint says that standard input is being read.
STDIN_WAIT_SECONDS = 2.0


def build_message(words: tuple[str, ...], files: tuple[Path, ...]) -> str:
    """Join the words, standard input and the files, each below its name.

    Raises click.UsageError when there is nothing to send, and CommandError for input that cannot
    be sent.
    """
    typed = " ".join(word for word in words if word != STDIN_WORD)
    is_piped = STDIN_WORD in words or not has_terminal()
    if not is_piped and not typed.strip() and not files:
        raise click.UsageError("say something: words, `-` for standard input, or -f FILE")
    message = "\n\n".join(
        part for part in (typed, read_stdin() if is_piped else "") if part.strip()
    )
    for path in files:
        message = check_message_size(f"{message}\n\n{fence_file(path)}".lstrip("\n"))
    if not message.strip():
        raise CommandError('there is nothing to ask; say it: crabtalk ask "…", or pipe it in')
    return check_message_size(message)


def has_terminal() -> bool:
    """Whether standard input is a terminal; False if it was closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_stdin() -> str:
    if sys.stdin is None:
        return ""
    if not has_terminal() and not select.select([sys.stdin], [], [], STDIN_WAIT_SECONDS)[0]:
        print_to_stderr("reading standard input to its end; `< /dev/null` where there is none")
    return decode_text(sys.stdin.buffer.read(MAX_MESSAGE_SIZE + 1), "standard input").rstrip("\n")


def fence_file(path: Path) -> str:
    """Render a file for an agent: its name, and its text between fences longer than any in it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MESSAGE_SIZE + 1)
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error.strerror}; name a file that can be read"
        ) from None
    text = decode_text(data, str(path))
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"{to_one_line(str(path))}:\n{fence}\n{text}{end}{fence}"


def decode_text(data: bytes, name: str) -> str:
    if len(data) > MAX_MESSAGE_SIZE:
        raise MessageTooLargeError
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CommandError(
            f"{name} is not text in UTF-8; name its path in words, and let the agent read it"
        ) from None


def check_message_size(message: str) -> str:
    """Return the message. Raises MessageTooLargeError if it is too large to send."""
    if len(message.encode()) > MAX_MESSAGE_SIZE:
        raise MessageTooLargeError
    return message


class MessageTooLargeError(CommandError):
    def __init__(self) -> None:
        super().__init__(
            f"that is more than the {MAX_MESSAGE_SIZE >> 20} MiB that can be said at once; "
            "name the files, and let the agent read what it needs"
        )
