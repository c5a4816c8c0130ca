"""schtasks: a task of the Windows Task Scheduler that starts at logon.

A task has no environment of its own: the program finds its home by its arguments or its working
directory, and PATH is the user's.
"""

import csv
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from crabtalk.transport import replace_file

from .errors import UnitError
from .unit import CommandRunner, Unit, UnitStatus, find_unwritable, run_checked

NAMESPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"
# Texts that the scheduler expands. It has no way to escape them.
EXPANDED_PATTERN = re.compile(r"%[^%]+%|\$\(")

# Elements in the order the schema asks for, with `/` between the levels.
SETTINGS = (
    ("Triggers/LogonTrigger/Enabled", "true"),
    ("Principals/Principal/LogonType", "InteractiveToken"),
    ("Principals/Principal/RunLevel", "LeastPrivilege"),
    ("Settings/MultipleInstancesPolicy", "IgnoreNew"),
    ("Settings/DisallowStartIfOnBatteries", "false"),
    ("Settings/StopIfGoingOnBatteries", "false"),
    ("Settings/RestartOnFailure/Interval", "PT1M"),
    ("Settings/RestartOnFailure/Count", "3"),
    ("Settings/ExecutionTimeLimit", "PT0S"),
)


@dataclass(frozen=True, slots=True)
class TaskScheduler:
    """`schtasks`, and the directory for its task definitions."""

    run: CommandRunner
    directory: Path

    def path(self, unit: Unit) -> Path:
        return self.directory / f"{unit.label}.xml"

    def render(self, unit: Unit) -> bytes:
        program, *arguments = unit.command
        task = ElementTree.Element("Task", version="1.2", xmlns=NAMESPACE)
        values = (
            ("RegistrationInfo/Description", unit.description),
            *SETTINGS,
            ("Actions/Exec/Command", check_literal(program)),
            ("Actions/Exec/Arguments", check_literal(subprocess.list2cmdline(arguments))),
            ("Actions/Exec/WorkingDirectory", check_literal(str(unit.directory))),
        )
        for path, text in values:
            ensure_element(task, path).text = text
        # UTF-16, because `schtasks /create /xml` reads that reliably.
        text = ElementTree.tostring(task, encoding="unicode")
        return f'<?xml version="1.0" encoding="UTF-16"?>\n{text}\n'.encode("utf-16")

    def start(self, unit: Unit) -> None:
        if self.status(unit).state != "running":
            self._install(unit)
            self._run_schtasks("/run", "/tn", unit.label)

    def stop(self, unit: Unit) -> None:
        if self.status(unit).state != "absent":
            self.run(["schtasks", "/end", "/tn", unit.label])
            self._run_schtasks("/delete", "/tn", unit.label, "/f")
        self.path(unit).unlink(missing_ok=True)

    def restart(self, unit: Unit) -> None:
        self._install(unit)
        self.run(["schtasks", "/end", "/tn", unit.label])
        self._run_schtasks("/run", "/tn", unit.label)

    def status(self, unit: Unit) -> UnitStatus:
        result = self.run(["schtasks", "/query", "/tn", unit.label, "/fo", "csv", "/nh"])
        if result.returncode != 0:
            return UnitStatus("absent")
        rows = [row for row in csv.reader(result.stdout.splitlines()) if len(row) >= 3]
        return UnitStatus("running" if any(row[2] == "Running" for row in rows) else "stopped")

    def _install(self, unit: Unit) -> None:
        text = self.render(unit)
        self.directory.mkdir(parents=True, exist_ok=True)
        replace_file(self.path(unit), text)
        self._run_schtasks("/create", "/tn", unit.label, "/xml", str(self.path(unit)), "/f")

    def _run_schtasks(self, *words: str) -> str:
        return run_checked(["schtasks", *words], self.run)


def check_literal(text: str) -> str:
    if (character := find_unwritable(text, controls="\t\n")) is not None:
        raise UnitError(f"a task cannot hold {character!r}, as in {text!r}; leave it out")
    if match := EXPANDED_PATTERN.search(text):
        raise UnitError(
            f"the Task Scheduler would replace {match[0]!r} in {text!r}; choose another path"
        )
    return text


def ensure_element(element: ElementTree.Element, path: str) -> ElementTree.Element:
    """The element at `path` below `element`; missing elements are made."""
    for name in path.split("/"):
        child = element.find(name)
        element = ElementTree.SubElement(element, name) if child is None else child
    return element
