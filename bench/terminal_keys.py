"""The chat at a terminal: the echo time of keys while an answer streams, and the opening time.

`crabtalk` runs in a pseudo-terminal, with a daemon and a scripted model in processes of their own.
No terminal draws its output: a key is echoed when the program has written its character.
"""

import fcntl
import os
import pty
import random
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from crabtalk.client import connect_sync
from tests.model_server import model_process

from .processes import compute_percentile, read_clock
from .tables import BenchTable

BIN = Path(sys.executable).parent
RATE = 200  # tokens a second
# Each is typed only once, so that a redraw is not taken for an echo.
LETTERS = [
    chr(code) for code in (*range(0x0430, 0x0450), *range(0x03B1, 0x03C2), *range(0x0561, 0x0587))
]
PATIENCE = 20.0
STARTS = 10
CONFIG = '[llm]\nbase_url = "{url}"\nmodel = "scripted"\nmax_retries = 0\n'


class ChatProcess:
    """The chat in a pseudo-terminal, with everything it has written."""

    def __init__(self, home: Path, size: tuple[int, int]) -> None:
        self.begun = read_clock()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "NO_COLOR": ""}
        self._process = subprocess.Popen(
            [BIN / "crabtalk", "--home", home, "--no-start"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=env,
        )
        os.close(slave)
        self.written = bytearray()

    def type_keys(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read_until(self, text: str, since: int = 0) -> float:
        """Read until the program has written `text`; return the time."""
        return self.read_until_match(re.compile(re.escape(text.encode())), since)

    def read_until_match(self, pattern: "re.Pattern[bytes]", since: int = 0) -> float:
        deadline = read_clock() + PATIENCE
        while not pattern.search(self.written, since):
            self.read(max(deadline - read_clock(), 0))
            if read_clock() > deadline:
                raise TimeoutError(f"{pattern.pattern!r} was not written")
        return read_clock()

    def read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            self.written += os.read(self._master, 1 << 16)

    def read_for(self, seconds: float) -> None:
        end = read_clock() + seconds
        while (left := end - read_clock()) > 0:
            self.read(left)

    @property
    def cpu(self) -> float:
        """The CPU seconds of the program."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@contextmanager
def open_chat(home: Path, size: tuple[int, int] = (80, 24)) -> Iterator[ChatProcess]:
    process = ChatProcess(home, size)
    try:
        yield process
    finally:
        process.close()


@contextmanager
def run_daemon_with_model() -> Iterator[Path]:
    """Run a daemon with a scripted model; yields its home."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "home"
        url, _ = stack.enter_context(model_process("--no-record"))
        home.mkdir(0o700)
        (home / "config.toml").write_text(CONFIG.format(url=url))
        process = stack.enter_context(
            subprocess.Popen(
                [BIN / "crabtalkd", "run", "--home", home, "--tcp", "off"],
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.terminate)
        assert process.stderr is not None
        assert "ready" in process.stderr.readline()
        yield home


def measure_echoes(count: int = len(LETTERS)) -> tuple[list[float], float]:
    """Return milliseconds from each key to its echo, and the share of a core the chat used."""
    chance = random.Random(7)  # noqa: S311 - when a key is pressed is no secret
    lags: list[float] = []
    with run_daemon_with_model() as home, open_chat(home) as chat:
        chat.read_until("ready")
        chat.type_keys(f"!chunks {RATE * 60} {RATE}\r")
        chat.read_until_match(re.compile(rb"\d{19}"))
        chat.read_for(0.5)
        cpu, start = chat.cpu, read_clock()
        for number, letter in enumerate(LETTERS[:count]):
            if number % 30 == 29:
                chat.type_keys("\x15")  # an empty line again
            chat.read_for(chance.uniform(0.05, 0.12))
            since = len(chat.written)
            pressed = read_clock()
            chat.type_keys(letter)
            lags.append((chat.read_until(letter, since) - pressed) * 1e3)
        return lags, (chat.cpu - cpu) / (read_clock() - start)


def measure_opening(home: Path) -> float:
    """Return milliseconds from starting the process to the prompt."""
    with open_chat(home) as chat:
        return (chat.read_until("ready") - chat.begun) * 1e3


def measure_import() -> float:
    """Return milliseconds of starting the interpreter and importing the chat."""
    code = "import crabtalk.cli.main, crabtalk.chat.app; print(flush=True)"
    start = read_clock()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return (read_clock() - start) * 1e3


def fill_conversation(home: Path, lines: int) -> None:
    """Create a conversation of `lines` lines."""
    page = "\n".join(f"line {number} of a page, as long as lines are" for number in range(100))
    with connect_sync(home=home) as client:
        for _ in range(lines // 200):
            client.send("crab", page)


def measure_keys() -> BenchTable:
    lags, share = measure_echoes()
    table = BenchTable(
        "Key press to echo while 200 tokens a second stream, ms",
        ["", "median", "p95", "worst", "CPU of one core"],
    )
    table.add_row(
        "crabtalk, 80x24",
        f"{compute_percentile(lags, 0.5):.1f}",
        f"{compute_percentile(lags, 0.95):.1f}",
        f"{max(lags):.1f}",
        f"{share:.0%}",
    )
    table.note = f"{len(lags)} keys. The CPU is that of the whole program, daemon apart."
    return table


def measure_openings() -> BenchTable:
    table = BenchTable(
        "Opening the chat, ms", ["", "median", "worst of 10", "of that, loading", "beyond it"]
    )
    with run_daemon_with_model() as home:
        for name, lines in (("nothing said yet", 0), ("10,000 lines of history", 10_000)):
            fill_conversation(home, lines)
            measure_opening(home)  # warm up: the daemon has read it
            # Alternating, so that other load affects both alike.
            pairs = [(measure_import(), measure_opening(home)) for _ in range(STARTS)]
            loading = compute_percentile([first for first, _ in pairs], 0.5)
            opened = [second for _, second in pairs]
            median = compute_percentile(opened, 0.5)
            beyond = compute_percentile([second - first for first, second in pairs], 0.5)
            table.add_row(
                name, f"{median:.0f}", f"{max(opened):.0f}", f"{loading:.0f}", f"{beyond:.0f}"
            )
    table.note = "Loading is the interpreter and what it imports, measured by itself."
    return table


def run_benchmark() -> list[BenchTable]:
    return [measure_keys(), measure_openings()]


if __name__ == "__main__":
    for table in run_benchmark():
        print(table.render_markdown(), flush=True)
