"""Message: what is said to an agent, put together from words, standard input and files."""

import re
import select
import sys
from pathlib import Path

import click

from crabtalk.service.command_line import print_to_stderr, to_one_line

from .errors import CommandError

STDIN_WORD = "-"
# Bytes of all of it: more than models read, and within what a frame takes.
MAX_MESSAGE_SIZE = 8 * 1024 * 1024
# Seconds after which somebody who waits for nothing wants to know why.
STDIN_WAIT_SECONDS = 2.0


def build_message(words: tuple[str, ...], files: tuple[Path, ...]) -> str:
    """The words, what is piped in, and the files, each below its name. Raises what is wrong."""
    said = " ".join(word for word in words if word != STDIN_WORD)
    is_piped = STDIN_WORD in words or not has_terminal()
    if not is_piped and not said.strip() and not files:
        raise click.UsageError("say something: words, `-` for standard input, or -f FILE")
    whole = "\n\n".join(part for part in (said, read_stdin() if is_piped else "") if part.strip())
    for path in files:
        whole = check_message_size(f"{whole}\n\n{fence_file(path)}".lstrip("\n"))
    if not whole.strip():
        raise CommandError('there is nothing to ask; say it: crabtalk ask "…", or pipe it in')
    return check_message_size(whole)


def has_terminal() -> bool:
    """Whether a person is at standard input; nobody is where it was closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_stdin() -> str:
    """All of standard input."""
    if sys.stdin is None:
        return ""
    if not has_terminal() and not select.select([sys.stdin], [], [], STDIN_WAIT_SECONDS)[0]:
        print_to_stderr("reading standard input to its end; `< /dev/null` where there is none")
    return decode_text(sys.stdin.buffer.read(MAX_MESSAGE_SIZE + 1), "standard input").rstrip("\n")


def fence_file(path: Path) -> str:
    """A file as agents read it: its name, and its text between fences that are not in it."""
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


def check_message_size(said: str) -> str:
    """What it is given, if so much can be said."""
    if len(said.encode()) > MAX_MESSAGE_SIZE:
        raise MessageTooLargeError
    return said


class MessageTooLargeError(CommandError):
    def __init__(self) -> None:
        super().__init__(
            f"that is more than the {MAX_MESSAGE_SIZE >> 20} MiB that can be said at once; "
            "name the files, and let the agent read what it needs"
        )
