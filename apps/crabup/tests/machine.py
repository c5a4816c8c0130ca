"""A machine for testing `crabup`: a PATH with the test's programs, a home, and real services.

`systemctl`, `launchctl`, `uv` and `pipx` are stubs that record their arguments; a machine has none
of them until the test adds them. The developer's own programs are never called.
"""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from crabtalk.service import Service, Unit
from crabup.supervisor_manager import SupervisorManager, SupervisorRecord
from tests.forked_programs import PATIENCE, ForkedProgram

CRABUP = Path(sys.executable).with_name("crabup")
CRABUP_LAUNCHER = ForkedProgram(
    *(CRABUP, "crabup.cli:main", "crabtalk.client", "crabtalk.service", "tomlkit"),
    *(
        f"crabup.{name}"
        for name in ("first_start", "installation", "managed_services", "install_plan", "probes")
    ),
)
INTERRUPT = "\x03"

# A minimal component: a port file, /health, and a line in the log.
COMPONENT_SCRIPT = """\
import os, signal, socket, sys
name = {name!r}
server = socket.create_server(("127.0.0.1", 0))
file = os.environ["CRABTALK_HOME"] + f"/run/{{name}}.port"
with open(f"{{file}}.new", "w") as new:
    print(server.getsockname()[1], file=new)
os.replace(f"{{file}}.new", file)
def stop(*_):
    print(name, "says goodbye", flush=True)
    os.unlink(file)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGHUP, lambda *_: print(name, "heard SIGHUP", flush=True))
print(name, "runs as", *sys.argv[1:], "in", os.getcwd(), flush=True)
health = f'{{{{"name": "{{name}}", "status": "ok", "pid": {{os.getpid()}}}}}}'
while True:
    line = server.accept()[0]
    if line.recv(65536):
        line.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + health.encode())
    line.close()
"""
# Without the site packages, which it does not need.
QUICK_PYTHON = f"{sys.executable} -IS"


@dataclass(frozen=True, slots=True)
class CrabupOutcome:
    code: int
    out: str
    err: str

    @property
    def output(self) -> str:
        """Standard output; the command must have succeeded without a message on stderr."""
        assert (self.code, self.err) == (0, ""), self
        return self.out

    @property
    def notice(self) -> str:
        """Standard error; the command must have succeeded without output."""
        assert (self.code, self.out) == (0, ""), self
        return self.err.rstrip("\n")

    @property
    def error(self) -> str:
        """The one sentence on stderr; the command must have failed without output."""
        assert (self.code, self.out) == (1, ""), self
        assert self.err.startswith("crabup: "), self
        assert self.err.count("\n") == 1, self
        return self.err.removeprefix("crabup: ").rstrip("\n")


class CrabupMachine:
    timeout: float = PATIENCE  # of one command

    def __init__(self, path: Path, home: Path) -> None:
        self.home = home
        self.user = path / "user"
        self.bin = path / "bin"
        self.calls_file = path / "asked"
        for directory in (self.user, self.bin):
            directory.mkdir()
        for manager in ("systemctl", "launchctl"):
            self.add_program(manager, "exit 1")

    def __enter__(self) -> "CrabupMachine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for path in (self.home / "run").glob("*.pid"):
            SupervisorManager(self.home, path.stem).stop(self.make_unit(path.stem))

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.user),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "CRABTALK_HOME": str(self.home),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
        }

    def add_program(self, name: str, script: str, interpreter: str = "/bin/sh") -> Path:
        path = self.bin / name
        path.write_text(f"#!{interpreter}\n{script}\n")
        path.chmod(0o755)
        return path

    def add_stub(self, name: str, script: str = "") -> None:
        """Add a program that records its arguments and then runs `script`."""
        keep = f'printf "%s\\n" "{name} $*" >> {shlex.quote(str(self.calls_file))}'
        self.add_program(name, f"{keep}\n{script}")

    @property
    def list_calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    def add_component(self, name: str = "dice", script: str = COMPONENT_SCRIPT) -> Path:
        interpreter = QUICK_PYTHON if script is COMPONENT_SCRIPT else sys.executable
        return self.add_program(f"crabtalk-{name}", script.format(name=name), interpreter)

    def run_crabup(self, *words: str | Path, typed: str = "", **env: str) -> CrabupOutcome:
        """Run a command in this process's fork; `typed` is its standard input, not a terminal."""
        env = {**self.environment, **env}
        return CrabupOutcome(
            *CRABUP_LAUNCHER.run(*words, typed=typed.encode(), env=env, patience=self.timeout)
        )

    def run_installed(self, *words: str | Path) -> CrabupOutcome:
        """Run the installed program, which loads everything it needs."""
        result = subprocess.run(
            [CRABUP, *words], capture_output=True, text=True, check=False, env=self.environment
        )
        return CrabupOutcome(result.returncode, result.stdout, result.stderr)

    def start_crabup(self, *words: str | Path, **options: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [CRABUP, *words], env=self.environment, stdout=subprocess.PIPE, text=True, **options
        )

    def run_at_terminal(
        self, *words: str | Path, typed: str = "", when: str = ""
    ) -> tuple[int, str]:
        """The exit status and the screen. Types `typed` when `when` is shown; ^C works too."""
        master, slave = pty.openpty()
        process = CRABUP_LAUNCHER.start(
            *words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**self.environment, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(slave)
        screen = b""
        end = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < end and select.select([master], [], [], PATIENCE)[0]:
                try:
                    piece = os.read(master, 65536)
                except OSError:  # the last program on the terminal has ended
                    break
                screen += piece
                if typed and when.encode() in screen:
                    if typed == INTERRUPT:
                        wait_until(lambda: is_asleep(process.pid))
                        process.send_signal(signal.SIGINT)
                    else:
                        os.write(master, typed.encode())
                    typed = ""
        finally:
            os.close(master)
        return process.wait_blocking(), screen.decode().replace("\r\n", "\n")

    def list_services(self) -> dict[str, dict[str, Any]]:
        rows = json.loads(self.run_crabup("ps", "--json").output)["services"]
        return {row["name"]: row for row in rows}

    def read_record(self, name: str = "dice") -> SupervisorRecord:
        record = SupervisorManager(self.home, name).find_record()
        assert record is not None
        return record

    def read_log(self, name: str = "dice") -> str:
        return (self.home / "logs" / f"{name}.log").read_text()

    def make_unit(self, name: str) -> Unit:
        return Unit.for_service(Service(name, "Under test"), Path("/bin/true"), self.home)


def is_asleep(pid: int) -> bool:
    """Whether it waits for input: a signal just before that would go unnoticed."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, and fail if it does not in time."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
