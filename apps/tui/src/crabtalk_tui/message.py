"""Message: what is said to an agent, put together from words, standard input and files."""

import re
import select
import sys
from pathlib import Path

import click

from crabtalk.component.command import one_line, say

from .complaints import CommandError

STDIN = "-"
# Bytes of all of it: more than models read, and within what a frame takes.
LARGEST = 8 * 1024 * 1024
# Seconds after which somebody who waits for nothing wants to know why.
QUIET = 2.0


def message(words: tuple[str, ...], files: tuple[Path, ...]) -> str:
    """The words, what is piped in, and the files, each below its name. Raises what is wrong."""
    said = " ".join(word for word in words if word != STDIN)
    is_piped = STDIN in words or not has_terminal()
    if not is_piped and not said.strip() and not files:
        raise click.UsageError("say something: words, `-` for standard input, or -f FILE")
    whole = "\n\n".join(part for part in (said, piped() if is_piped else "") if part.strip())
    for path in files:
        whole = within(f"{whole}\n\n{fenced(path)}".lstrip("\n"))
    if not whole.strip():
        raise CommandError('there is nothing to ask; say it: crabtalk ask "…", or pipe it in')
    return within(whole)


def has_terminal() -> bool:
    """Whether a person is at standard input; nobody is where it was closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def piped() -> str:
    """All of standard input."""
    if sys.stdin is None:
        return ""
    if not has_terminal() and not select.select([sys.stdin], [], [], QUIET)[0]:
        say("reading standard input to its end; `< /dev/null` where there is none")
    return text_of(sys.stdin.buffer.read(LARGEST + 1), "standard input").rstrip("\n")


def fenced(path: Path) -> str:
    """A file as agents read it: its name, and its text between fences that are not in it."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error.strerror}; name a file that can be read"
        ) from None
    text = text_of(data, str(path))
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"{one_line(str(path))}:\n{fence}\n{text}{end}{fence}"


def text_of(data: bytes, name: str) -> str:
    if len(data) > LARGEST:
        raise TooMuchError
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CommandError(
            f"{name} is not text in UTF-8; name its path in words, and let the agent read it"
        ) from None


def within(said: str) -> str:
    """What it is given, if so much can be said."""
    if len(said.encode()) > LARGEST:
        raise TooMuchError
    return said


class TooMuchError(CommandError):
    def __init__(self) -> None:
        super().__init__(
            f"that is more than the {LARGEST >> 20} MiB that can be said at once; name the files, "
            "and let the agent read what it needs"
        )
