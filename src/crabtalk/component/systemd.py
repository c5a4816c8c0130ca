"""systemd: user units, in the quoting of systemd.syntax(7) and systemd.service(5)."""

import re
from dataclasses import dataclass
from pathlib import Path

from crabtalk.transport import replace_file

from .errors import UnitError
from .unit import Runner, Status, Unit, check, find_unwritable

TEMPLATE = """\
[Unit]
Description={description}
After=network-online.target

[Service]
Type=simple
ExecStart={command}
WorkingDirectory={directory}
Environment={environment}
{output}Restart=always
RestartSec=3

[Install]
WantedBy=default.target
"""
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%"}
STATES = {"active": "running", "activating": "running", "reloading": "running", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class Systemd:
    """`systemctl --user`, and the directory it reads units from."""

    run: Runner
    directory: Path

    def path(self, unit: Unit) -> Path:
        return self.directory / f"{unit.label}.service"

    def render(self, unit: Unit) -> bytes:
        output = "" if unit.log is None else f"append:{plain(str(unit.log))}"
        text = TEMPLATE.format(
            description=plain(" ".join(unit.description.split())),
            command=" ".join([program(unit.command[0]), *map(argument, unit.command[1:])]),
            directory=plain(str(unit.directory)),
            environment=" ".join(
                quoted(variable(f"{name}={value}")) for name, value in unit.environment.items()
            ),
            output=f"StandardOutput={output}\nStandardError={output}\n" if output else "",
        )
        return text.encode()

    def start(self, unit: Unit) -> None:
        self._install(unit)
        self._systemctl("enable", "--now", self.path(unit).name)

    def stop(self, unit: Unit) -> None:
        if self.path(unit).exists():
            self._systemctl("disable", "--now", self.path(unit).name)
            self.path(unit).unlink(missing_ok=True)
            self._systemctl("daemon-reload")

    def restart(self, unit: Unit) -> None:
        self._install(unit)
        self._systemctl("enable", self.path(unit).name)
        self._systemctl("restart", self.path(unit).name)

    def status(self, unit: Unit) -> Status:
        shown = self._systemctl(
            "show", "--property=LoadState,ActiveState,MainPID", self.path(unit).name
        )
        known = dict(line.partition("=")[::2] for line in shown.splitlines())
        if known.get("LoadState") == "not-found":
            return Status("absent")
        pid = int(known.get("MainPID") or 0)
        match STATES.get(known.get("ActiveState", "")):
            case "running":
                return Status("running", pid or None)
            case "failed":
                return Status("failed")
        return Status("stopped")

    def _install(self, unit: Unit) -> None:
        text = self.render(unit)
        self.directory.mkdir(parents=True, exist_ok=True)
        replace_file(self.path(unit), text, 0o644)
        self._systemctl("daemon-reload")

    def _systemctl(self, *words: str) -> str:
        return check(["systemctl", "--user", *words], self.run)


def quoted(text: str) -> str:
    """One word that systemd unquotes, unescapes and expands to `text` again."""
    escaped = (ESCAPES.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 32 else c) for c in text)
    return f'"{"".join(escaped)}"'


def argument(text: str) -> str:
    if (odd := find_unwritable(text, controls=CONTROLS)) is not None:
        raise UnitError(f"systemd cannot pass {odd!r} in the argument {text!r}; leave it out")
    return quoted(text.replace("$", "$$"))


def program(path: str) -> str:
    """The first word: no variables are expanded in it, and systemd refuses the odder characters."""
    if find_unwritable(path, controls="") is not None or re.search(r"""["'\\]""", path):
        raise UnitError(
            f"systemd cannot start {path!r}: it takes no quotes, backslashes or control characters "
            "in the path of a program; install it elsewhere"
        )
    return quoted(path)


def variable(text: str) -> str:
    if (odd := find_unwritable(text, controls="\t\n")) is not None:
        name = text.partition("=")[0]
        raise UnitError(f"systemd cannot hold {odd!r} in {name}; take it out of {name}")
    return text


def plain(text: str) -> str:
    """The rest of a line, where nothing is unquoted: only `%` has a meaning."""
    is_cut = text != text.strip() or text.endswith("\\")
    if is_cut or find_unwritable(text, controls="") is not None:
        raise UnitError(
            f"systemd cannot read {text!r} from a unit: no control characters, and neither a blank "
            "nor a backslash at the end; choose another directory"
        )
    return text.replace("%", "%%")


CONTROLS = "".join(map(chr, (*range(1, 32), 127)))
