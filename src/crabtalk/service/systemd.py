"""systemd: user units, quoted as in systemd.syntax(7) and systemd.service(5)."""

import re
from dataclasses import dataclass
from pathlib import Path

from crabtalk.transport import replace_file

from .errors import UnitError
from .unit import CommandRunner, Unit, UnitStatus, find_unwritable, run_checked

UNIT_TEMPLATE = """\
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

    run: CommandRunner
    directory: Path

    def path(self, unit: Unit) -> Path:
        return self.directory / f"{unit.label}.service"

    def render(self, unit: Unit) -> bytes:
        output = "" if unit.log is None else f"append:{escape_line(str(unit.log))}"
        text = UNIT_TEMPLATE.format(
            description=escape_line(" ".join(unit.description.split())),
            command=" ".join(
                [quote_program(unit.command[0]), *map(quote_argument, unit.command[1:])]
            ),
            directory=escape_line(str(unit.directory)),
            environment=" ".join(
                quote_word(check_variable(f"{name}={value}"))
                for name, value in unit.environment.items()
            ),
            output=f"StandardOutput={output}\nStandardError={output}\n" if output else "",
        )
        return text.encode()

    def start(self, unit: Unit) -> None:
        self._install(unit)
        self._run_systemctl("enable", "--now", self.path(unit).name)

    def stop(self, unit: Unit) -> None:
        if self.path(unit).exists():
            self._run_systemctl("disable", "--now", self.path(unit).name)
            self.path(unit).unlink(missing_ok=True)
            self._run_systemctl("daemon-reload")

    def restart(self, unit: Unit) -> None:
        self._install(unit)
        self._run_systemctl("enable", self.path(unit).name)
        self._run_systemctl("restart", self.path(unit).name)

    def status(self, unit: Unit) -> UnitStatus:
        output = self._run_systemctl(
            "show", "--property=LoadState,ActiveState,MainPID", self.path(unit).name
        )
        properties = dict(line.partition("=")[::2] for line in output.splitlines())
        if properties.get("LoadState") == "not-found":
            return UnitStatus("absent")
        pid = int(properties.get("MainPID") or 0)
        match STATES.get(properties.get("ActiveState", "")):
            case "running":
                return UnitStatus("running", pid or None)
            case "failed":
                return UnitStatus("failed")
        return UnitStatus("stopped")

    def _install(self, unit: Unit) -> None:
        text = self.render(unit)
        self.directory.mkdir(parents=True, exist_ok=True)
        replace_file(self.path(unit), text, 0o644)
        self._run_systemctl("daemon-reload")

    def _run_systemctl(self, *words: str) -> str:
        return run_checked(["systemctl", "--user", *words], self.run)


def quote_word(text: str) -> str:
    """Quote a text as one word, so that systemd reads the same text again."""
    escaped = (ESCAPES.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 32 else c) for c in text)
    return f'"{"".join(escaped)}"'


def quote_argument(text: str) -> str:
    if (character := find_unwritable(text, controls=ALLOWED_CONTROLS)) is not None:
        raise UnitError(f"systemd cannot pass {character!r} in the argument {text!r}; leave it out")
    return quote_word(text.replace("$", "$$"))


def quote_program(path: str) -> str:
    """Quote the program. No variables are expanded in the first word, and systemd refuses quotes,
    backslashes and control characters in it."""
    if find_unwritable(path, controls="") is not None or re.search(r"""["'\\]""", path):
        raise UnitError(
            f"systemd cannot start {path!r}: it takes no quotes, backslashes or control characters "
            "in the path of a program; install it elsewhere"
        )
    return quote_word(path)


def check_variable(text: str) -> str:
    if (character := find_unwritable(text, controls="\t\n")) is not None:
        name = text.partition("=")[0]
        raise UnitError(f"systemd cannot hold {character!r} in {name}; take it out of {name}")
    return text


def escape_line(text: str) -> str:
    """Escape the rest of a line. It is not unquoted, so only `%` has a meaning."""
    is_cut = text != text.strip() or text.endswith("\\")
    if is_cut or find_unwritable(text, controls="") is not None:
        raise UnitError(
            f"systemd cannot read {text!r} from a unit: no control characters, and neither a blank "
            "nor a backslash at the end; choose another directory"
        )
    return text.replace("%", "%%")


ALLOWED_CONTROLS = "".join(map(chr, (*range(1, 32), 127)))
