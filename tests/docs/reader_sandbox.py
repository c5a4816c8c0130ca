"""A sandbox in which tests follow a page as a reader does: a home, a shell, and a model server.

The programs are the installed ones and run as processes; only the model is scripted, and repeats
the message it gets.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from tests.cli.leftover_daemons import stop_daemon
from tests.model_server import model_process

# Seconds. No command on a page takes longer.
PATIENCE = 50
BIN = Path(sys.executable).parent
SUMMARY = "We spoke of Heron. It is a boat."
CONFIG = '[daemon]\ntcp = "off"\n[llm]\nbase_url = "{url}"\nmodel = "scripted"\n'
AGENTS = ("twin", "scout")


@dataclass(frozen=True, slots=True)
class ReaderSandbox:
    home: Path
    directory: Path  # the working directory: a checkout with an uncommitted change
    model: str

    @property
    def environment(self) -> dict[str, str]:
        # Remove variables of a make that runs these tests, such as MAKEFLAGS.
        ours = {name: value for name, value in os.environ.items() if not name.startswith("M")}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {**ours, "CRABTALK_HOME": str(self.home), "PATH": path}

    def run_shell(self, script: str) -> str:
        """Run a script, which has to succeed, and return its output."""
        return self.run_command(["sh", "-eu", "-c", script])

    def run_command(self, command: Sequence[str | Path]) -> str:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def serve_until(self, command: Sequence[str | Path], until: str) -> str:
        """Run a program until it prints a line with `until`, then stop it; return its output."""
        output = ""
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            deadline = Timer(PATIENCE, process.kill)
            deadline.start()
            try:
                for line in process.stdout:
                    output += line
                    if until in line:
                        break
                else:
                    raise AssertionError(f"{command} ended without {until!r}:\n{output}")
                process.send_signal(signal.SIGINT)
                process.stdout.read()
                assert process.wait(PATIENCE) in (0, 130), output
            finally:
                deadline.cancel()
                process.kill()
        return output


@contextmanager
def open_sandbox(folder: Path) -> Iterator[ReaderSandbox]:
    """Open a sandbox. Its daemon is stopped at the end."""
    home, directory = folder / "home", folder / "checkout"
    (home / "agents").mkdir(0o700, parents=True)
    home.chmod(0o700)
    (home / "config").mkdir(0o700)
    (home / "config" / "web.toml").write_text(f"[relay]\nport = {find_free_port()}\n")
    for name in AGENTS:
        (home / "agents" / f"{name}.toml").write_text(f'prompt = "You are {name}."\n')
    (home / "agents" / "crab.toml").write_text('prompt = "You are crab."\n')
    create_changed_repository(directory)
    with model_process("--no-record", "--summary", SUMMARY) as (url, _):
        (home / "config.toml").write_text(CONFIG.replace("{url}", url))
        try:
            yield ReaderSandbox(home, directory, url)
        finally:
            stop_daemon(home)


def create_changed_repository(directory: Path) -> None:
    """Create a repository with an uncommitted change."""
    directory.mkdir()
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    (directory / "tides.txt").write_text("high at six\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Tides"]):
        subprocess.run([*git, *words], cwd=directory, check=True)
    (directory / "tides.txt").write_text("high at seven\n")


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
