"""Which memory a command works on: an agent's at the daemon, or a file without a daemon."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .errors import CommandError
from .memory_sources import DaemonMemorySource, FileMemorySource, MemorySource
from .options import connect_daemon, home_option

if TYPE_CHECKING:
    from crabtalk.memory import Memory

FILE_MAGIC = b"CRMEM\0"
F = TypeVar("F", bound=Callable[..., Any])

sender_option = click.option(
    "--sender", default="", help="Only what this sender may see. Without it: everything."
)
file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="This .crmem file, without a daemon; leave AGENT out.",
)


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    """A memory as the command line names it: an agent of the daemon in `home`, or a file."""

    agent: str = ""
    sender: str = ""
    home: Path | None = None
    file: Path | None = None

    @contextmanager
    def open_to_read(self) -> Iterator[MemorySource]:
        if self.file is None:
            with self._open_at_daemon() as store:
                yield store
        else:
            from crabtalk.memory import Memory

            if not self.file.exists():
                raise CommandError(f"{self.file} does not exist; name a .crmem file that does")
            require_memory_file(self.file)
            yield FileMemorySource(Memory.open_read_only(self.file))

    @contextmanager
    def open_to_write(self) -> Iterator[MemorySource]:
        """Open for writing. A missing file is created; one a daemon uses raises CommandError."""
        if self.file is None:
            with self._open_at_daemon() as store:
                yield store
        else:
            with open_memory_file(self.file) as memory:
                yield FileMemorySource(memory)

    @contextmanager
    def _open_at_daemon(self) -> Iterator[MemorySource]:
        with connect_daemon(self.home) as client:
            yield DaemonMemorySource(client, self.agent, self.sender)


def add_location_options(command: F) -> F:
    """Add the options that name a memory. Without --file the command's first word is AGENT."""
    for option in (home_option, file_option, sender_option):  # help lists the last one first
        command = option(command)
    return command


def parse_location(
    words: tuple[str, ...], *names: str, sender: str, home: Path | None, file: Path | None
) -> tuple[MemoryLocation, list[str]]:
    """Return the memory and the remaining words.

    There is one word for each of `names`, and any number for a last name that ends in dots.
    """
    if file is None and not words:
        raise click.UsageError("say whose memory: AGENT, or --file PATH")
    if file is not None and (sender or home is not None):
        raise click.UsageError("--file is a memory of its own; leave --sender and --home out")
    agent, *rest = words if file is None else ("", *words)
    if len(rest) < len(names):
        raise click.UsageError(f"{names[len(rest)].rstrip('.')} is missing")
    if len(rest) > len(names) and not "".join(names).endswith("..."):
        raise click.UsageError(f"{rest[len(names)]!r} is a word too many; quote what is one")
    return MemoryLocation(agent, sender, home, file), rest


def open_memory_file(path: Path) -> "Memory":
    from crabtalk.memory import Memory, MemoryInUseError

    if path.exists():
        require_memory_file(path)
    try:
        return Memory.open(path)
    except MemoryInUseError:
        raise CommandError(
            f"{path} is in use; if a daemon has it, name the agent instead of --file, or stop it"
        ) from None


def require_memory_file(path: Path) -> None:
    """Refuse other files: a store repairs damage, and would turn them into an empty memory."""
    with path.open("rb") as file:
        if file.read(len(FILE_MAGIC)) != FILE_MAGIC:
            raise CommandError(f"{path} is no memory; name a .crmem file")
