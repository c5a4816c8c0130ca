"""Editing in a person's own editor: what they wrote is tried, and comes back with what is wrong
with it until it is right or they give up. It is never lost.
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
# Times that an editor is opened for one page: what is wrong by then, nobody at it has read.
MAX_ROUNDS = 20


class InvalidEditError(Exception):
    """What is wrong with what was written, in a sentence."""


def edit_text(page: str, name: str, accept: Callable[[str], None], again: str) -> bool:
    """Whether `accept` took what was made of the page; False if nothing was.

    `accept` raises ObjectionError for what is to be edited again. `again` is what a person types to
    begin anew.
    """
    if not sys.stdin.isatty():
        raise CommandError("without a terminal there is no editor; say --config FILE")
    command = find_editor()
    with open_draft(page, name) as path:
        shown, objection = page, ""
        for _ in range(MAX_ROUNDS):
            if (text := run_editor(command, path)) == shown:
                break
            try:
                accept(text)
            except InvalidEditError as error:
                objection = to_one_line(str(error))
                path.write_text(f"{ERROR_PREFIX}{objection}\n{text}", encoding="utf-8")
                shown = text
            else:
                return True
        if text != page:
            raise CommandError(
                f"nothing was changed: {objection}; `{again} --config "
                f"{shlex.quote(str(path))}` takes it once that is mended"
            )
        return False


def find_editor() -> list[str]:
    """What the person chose, else what most machines have."""
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        words = shlex.split(chosen)
    except ValueError:
        raise CommandError(f"$VISUAL or $EDITOR has a quote too many: {chosen}") from None
    found = words or [path for name in EDITORS if (path := shutil.which(name))][:1]
    if not found:
        raise CommandError("there is no editor here; name one in $EDITOR")
    return found


@contextmanager
def open_draft(page: str, name: str) -> Iterator[Path]:
    """A file with the page in it. It stays when the block fails and somebody wrote in it."""
    directory = Path(tempfile.mkdtemp(prefix="crabtalk-"))  # closed to others
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
    """What is in the file when the editor is closed, without our objections."""
    # Ctrl+C is the editor's. A handler of ours is not passed on to it, ignoring would be.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        ended = subprocess.run([*command, path], check=False).returncode
    except OSError as error:
        raise CommandError(
            f"{command[0]} cannot be started: {error.strerror}; name an editor in $EDITOR"
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)
    if ended != 0:
        raise CommandError(f"{command[0]} ended with status {ended}, and nothing was changed")
    try:
        return strip_errors(path.read_bytes().decode())
    except UnicodeDecodeError:
        raise CommandError("what the editor wrote is not UTF-8; nothing was changed") from None


def strip_errors(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith(ERROR_PREFIX))


def has_edits(path: Path, page: str) -> bool:
    """Whether there is anything in it that somebody would miss."""
    try:
        return strip_errors(path.read_bytes().decode(errors="replace")) != page
    except OSError:
        return False
