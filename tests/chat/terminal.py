"""The `crabtalk` command in a pseudo-terminal, with an emulated screen and scrollback.

    async with open_chat(home, size=(80, 24)) as terminal:
        terminal.type_keys("hello\r")
        await terminal.wait_for_text("heard: hello")

Waits are for text on the screen; none of them is a sleep.
"""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pyte

from crabtalk.chat.terminal_output import REWRAPPING_VARIABLES
from crabtalk.client import Client, connect
from crabtalk.transport import RunFiles
from tests.daemon.in_process_daemon import AGENTS, PATIENCE, prepare_home
from tests.forked_programs import PIPE, ForkedProcess, ForkedProgram
from tests.model_server import ModelServer, model_server

BIN = Path(sys.executable).parent
CHAT = ForkedProgram(BIN / "crabtalk", "crabtalk.cli.main:main", "crabtalk.chat.app")
# With the modules a daemon imports for its first turn.
CRABTALKD = ForkedProgram(
    *(BIN / "crabtalkd", "crabtalk.daemon.cli:main", "crabtalk.daemon.process.main_loop"),
    *(
        "crabtalk.daemon.handlers.daemon_server",
        "crabtalk.model.openai",
        "aiohttp",
        "tantivy",
        "uvloop",
    ),
)
LINES = 100_000  # of scrollback

Cells = Any  # pyte's: characters by column

ENTER, ESCAPE, SPACE, TAB, BACKTAB, BACKSPACE = "\r", "\x1b", " ", "\t", "\x1b[Z", "\x7f"
UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"
ALT_ENTER = "\x1b\r"


def get_control_key(letter: str) -> str:
    return chr(ord(letter.upper()) - 64)


def bracket_paste(text: str) -> str:
    """Return the text as a terminal with bracketed paste sends it."""
    return f"\x1b[200~{text}\x1b[201~"


class FaintTextScreen(pyte.HistoryScreen):
    """A screen that knows faint text. It is stored as blinking, which the chat never uses."""

    def select_graphic_rendition(self, *attrs: int) -> None:
        if not {38, 48} & {*attrs}:  # a 2 among those is part of a colour
            attrs = tuple({2: 5, 22: 25}.get(attr, attr) for attr in attrs)
        super().select_graphic_rendition(*attrs)


class ChatTerminal:
    """A person's view of the chat: types keys, reads the screen, waits for text."""

    def __init__(self, master: int, process: ForkedProcess, size: tuple[int, int]):
        self.process = process
        self.written = bytearray()  # raw output of the command
        self.columns, self.rows = size
        self._screen = FaintTextScreen(*size, history=LINES, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._master = master
        self._changes = asyncio.Event()
        self._has_ended = False
        asyncio.get_running_loop().add_reader(master, self._read)

    # ── Actions ─────────────────────────────────────────────────────────────────────────────

    def type_keys(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int, *, rewraps: bool = False) -> None:
        """Resize as a window does: first the screen, then the command gets SIGWINCH.

        Lines that are too wide are wrapped again if the terminal `rewraps`, and else hidden.
        """
        screen = self._screen
        lines = [*screen.history.top, *(screen.buffer[y] for y in range(screen.lines))]
        at, x = len(screen.history.top) + screen.cursor.y, screen.cursor.x
        below = [
            y for y, line in enumerate(lines) if y > at and read_line_text(line, screen.columns)
        ]
        del lines[max(below, default=at) + 1 :]
        if rewraps:
            broken = [rewrap_line(line, screen.columns, columns) for line in lines]
            at = sum(map(len, broken[:at])) + x // columns
            x %= columns
            lines = [piece for line in broken for piece in line]
        top = max(len(lines) - rows, 0)
        screen.resize(rows, columns)
        screen.history.top.clear()
        screen.history.top.extend(lines[:top])
        screen.buffer.clear()
        for y, line in enumerate(lines[top:]):
            screen.buffer[y] = line
        screen.cursor.y, screen.cursor.x = at - top, min(x, columns - 1)
        self.columns, self.rows = columns, rows
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # ── The screen ──────────────────────────────────────────────────────────────────────────

    @property
    def screen(self) -> list[str]:
        """The rows in view."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def scrollback(self) -> list[str]:
        """The rows that have scrolled out of view, oldest first."""
        return [read_line_text(line, self._screen.columns) for line in self._screen.history.top]

    @property
    def lines(self) -> list[str]:
        """All rows, the scrollback and the view."""
        return self.scrollback + self.screen

    @property
    def full_text(self) -> str:
        return "\n".join(self.lines)

    @property
    def view_text(self) -> str:
        return "\n".join(self.screen)

    @property
    def cursor(self) -> tuple[int, int]:
        return self._screen.cursor.x, self._screen.cursor.y

    def get_styles(self, text: str) -> set[str]:
        """Return colours and attributes of the cells in view that show a text."""
        styles: set[str] = set()
        for y, line in enumerate(self._screen.display):
            for match in re.finditer(re.escape(text), line):
                for x in range(match.start(), match.end()):
                    cell = self._screen.buffer[y][x]
                    styles |= {cell.fg} | ({"bold"} if cell.bold else set())
        return styles

    @property
    def modes(self) -> list[Any]:
        """The terminal attributes (echo, line editing and so on) that programs have set."""
        return termios.tcgetattr(self._master)

    @property
    def cells(self) -> list[list[pyte.screens.Char]]:
        """The cells in view, with their colours."""
        return [
            [self._screen.buffer[y][x] for x in range(self._screen.columns)]
            for y in range(self._screen.lines)
        ]

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────

    async def wait_for_text(self, text: str) -> None:
        """Wait until the text is in view or in the scrollback."""
        await self.wait_until(lambda: text in self.full_text, f"{text!r} to be seen")

    async def wait_for_view(self, text: str) -> None:
        await self.wait_until(lambda: text in self.view_text, f"{text!r} to be in view")

    async def wait_until_gone(self, text: str) -> None:
        """Wait until the text is not in view."""
        await self.wait_until(lambda: text not in self.view_text, f"{text!r} to go")

    async def wait_for_bytes(self, count: int) -> None:
        """Wait until the command has written `count` bytes in all."""
        await self.wait_until(lambda: len(self.written) >= count, f"{count} bytes")

    async def wait_until(self, claim: Callable[[], bool], what: str = "it") -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not claim():
                    assert not self._has_ended, (
                        f"it ended instead of {what}:\n{self.render_picture()}"
                    )
                    self._changes.clear()
                    await self._changes.wait()
        except TimeoutError:
            raise AssertionError(f"waited for {what}:\n{self.render_picture()}") from None

    async def wait_for_exit(self) -> int:
        """Wait until the command ends by itself; return its exit status."""
        try:
            async with asyncio.timeout(PATIENCE):
                status = await self.process.wait()
                while not self._has_ended:
                    self._changes.clear()
                    await self._changes.wait()
                return status
        except TimeoutError:
            raise AssertionError(f"it does not end:\n{self.render_picture()}") from None

    def render_picture(self) -> str:
        rule = "+" + "-" * self.columns + "+"
        rows = [f"|{line.ljust(self.columns)}|" for line in self.screen]
        return "\n".join([*self.scrollback[-40:], rule, *rows, rule, f"cursor {self.cursor}"])

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        os.close(self._master)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the last program at the terminal has left it
            data = b""
        if data:
            self.written += data
            self._stream.feed(data)
        else:
            self._has_ended = True
            asyncio.get_running_loop().remove_reader(self._master)
        self._changes.set()


def read_line_text(line: Cells, width: int) -> str:
    return "".join(line[x].data for x in range(width)).rstrip()


def rewrap_line(line: Cells, width: int, max_width: int) -> list[Cells]:
    """Break a line into as many lines as needed."""
    length = max(len(read_line_text(line, width)), 1)
    broken: list[Cells] = []
    for first in range(0, length, max_width):
        piece: Cells = pyte.screens.StaticDefaultDict(line.default)
        piece.update({x - first: line[x] for x in range(first, min(first + max_width, length))})
        broken.append(piece)
    return broken


@asynccontextmanager
async def open_chat(
    home: Path,
    *words: str | Path,
    size: tuple[int, int] = (80, 24),
    cwd: Path | None = None,
    **env: str,
) -> AsyncIterator[ChatTerminal]:
    """Run `crabtalk` in a terminal; `words` are added to its command line."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    clean_env = dict.fromkeys(("COLORTERM", "NO_COLOR", *REWRAPPING_VARIABLES), "")
    clean_env |= {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    process = CHAT.start(
        *("--home", home, *words),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        has_terminal=True,
        cwd=cwd,
        env={**os.environ, **clean_env, **env},
    )
    os.close(slave)
    terminal = ChatTerminal(master, process, size)
    try:
        yield terminal
    finally:
        await terminal.close()


class KillableDaemon:
    """A `crabtalkd` process that can be killed and started again."""

    model: ModelServer

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process: ForkedProcess | None = None

    async def start(self) -> None:
        self._process = CRABTALKD.start("run", "--home", self.home, "--tcp", "off", stderr=PIPE)
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stderr.readline()
        assert b"ready" in line, line

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    @property
    def holder_pid(self) -> int | None:
        """The pid of the process that serves the home now, also one that a chat started."""
        return RunFiles.for_home(self.home).read_daemon_pid()

    async def kill_holder(self) -> None:
        """Kill the daemon that the chat has started."""
        if (process := self.holder_pid) is not None:
            os.kill(process, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE):
                while self.holder_pid is not None:  # not our child, so it cannot be waited for
                    await asyncio.sleep(0.01)

    def client(self) -> Client:
        return connect(home=self.home, timeout=PATIENCE)


@asynccontextmanager
async def run_scripted_daemon(
    path: Path, *, agents: dict[str, str] | None = None
) -> AsyncIterator[KillableDaemon]:
    """Run a daemon with a scripted model, and with the agents AGENTS unless given."""
    home = path / "home"
    async with model_server() as model:
        config = f'[llm]\nbase_url = "{model.url}"\nmodel = "scripted"\nmax_retries = 0\n'
        prepare_home(home, agents or AGENTS, config)
        daemon = KillableDaemon(home)
        daemon.model = model
        await daemon.start()
        try:
            yield daemon
        finally:
            await daemon.kill()
            await daemon.kill_holder()
