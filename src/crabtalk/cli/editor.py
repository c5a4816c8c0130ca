"""Edit a text in the person's own editor.

The edited text is applied; if it is invalid, the editor opens again with the error on top, until
the text is valid or the person gives up. Edits are never lost.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crabtalk.service.command_line import print_to_stderr, to_one_line

from .errors import CommandError

EDITORS = ("nano", "vim", "vi")
ERROR_PREFIX = "#! "
# How often an editor is opened for one page: by then no person is reading the errors.
MAX_ROUNDS = 20


class InvalidEditError(Exception):
    """The edited text is invalid; the message is one sentence."""


def edit_text(page: str, name: str, accept: Callable[[str], None], again: str) -> bool:
    """Return True if `accept` took the edited page, False if the person left it unchanged.

    `accept` raises InvalidEditError for text to be edited again. `again` is the command that a
    person types to start over.
    """
    if not sys.stdin.isatty():
        raise CommandError("without a terminal there is no editor; say --config FILE")
    command = find_editor()
    with open_draft(page, name) as path:
        previous, problem = page, ""
        for _ in range(MAX_ROUNDS):
            if (text := run_editor(command, path)) == previous:
                break
            try:
                accept(text)
            except InvalidEditError as error:
                problem = to_one_line(str(error))
                path.write_text(f"{ERROR_PREFIX}{problem}\n{text}", encoding="utf-8")
                previous = text
            else:
                return True
        if text != page:
            raise CommandError(
                f"nothing was changed: {problem}; `{again} --config "
                f"{shlex.quote(str(path))}` takes it once that is mended"
            )
        return False


def find_editor() -> list[str]:
    """Return the command of $VISUAL or $EDITOR, else the first common editor that is installed."""
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        words = shlex.split(chosen)
    except ValueError:
        raise CommandError(f"$VISUAL or $EDITOR has a quote too many: {chosen}") from None
    command = words or [path for name in EDITORS if (path := shutil.which(name))][:1]
    if not command:
        raise CommandError("there is no editor here; name one in $EDITOR")
    return command


@contextmanager
def open_draft(page: str, name: str) -> Iterator[Path]:
    """Create a file with the page. It is kept when the block fails and the file was edited."""
    directory = Path(tempfile.mkdtemp(prefix="crabtalk-"))  # mkdtemp makes it private
    path = directory / f"{name}.toml"
    path.write_text(page, encoding="utf-8")
    try:
        yield path
    except BaseException:
        if has_edits(path, page):
            print_to_stderr(f"what you wrote is in {path}")
            raise
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


def run_editor(command: list[str], path: Path) -> str:
    """Run the editor and return the file's text without our error lines."""
    # Ctrl+C is for the editor. It would inherit SIG_IGN, but not a handler of ours.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        status = subprocess.run([*command, path], check=False).returncode
    except OSError as error:
        raise CommandError(
            f"{command[0]} cannot be started: {error.strerror}; name an editor in $EDITOR"
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)
    if status != 0:
        raise CommandError(f"{command[0]} ended with status {status}, and nothing was changed")
    try:
        return strip_errors(path.read_bytes().decode())
    except UnicodeDecodeError:
        raise CommandError("what the editor wrote is not UTF-8; nothing was changed") from None


def strip_errors(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith(ERROR_PREFIX))


def has_edits(path: Path, page: str) -> bool:
    """Whether the file differs from the page it began with."""
    try:
        return strip_errors(path.read_bytes().decode(errors="replace")) != page
    except OSError:
        return False
