"""Checks of the files in a home, as findings with the command that fixes each.

They write nothing and start no daemon; `daemon_checks.py` asks a running one. A check that itself
fails is a finding too.
"""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from .errors import CommandError

MIB = 1 << 20
LOW_DISK_SPACE = 1024 * MIB
NO_DISK_SPACE = 100 * MIB
LARGE_LOGS = 500 * MIB
MAX_FILES = 10_000  # files checked in a directory
MAX_NAMED_FILES = 3  # files named in one finding
VERIFY_SECONDS = 10.0  # seconds for verifying checksums
PROGRAM_TIMEOUT = 20.0  # seconds for the daemon's program to read a file
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `mend` is the command that fixes it; empty if there is none."""

    level: Level
    what: str
    text: str
    mend: str = ""


HomeCheck = Callable[[Path], Iterable[Finding]]


def run_home_checks(home: Path) -> Iterator[Finding]:
    """Run all checks, in the order a person would look."""
    for what, check in CHECKS.items():
        try:
            yield from check(home)
        except OSError as error:
            yield Finding("fail", what, f"cannot be looked at: {error}")


def check_home(home: Path) -> Iterator[Finding]:
    if not home.exists():
        parent = find_existing_parent(home)
        if not parent.is_dir():
            text = f"{home} cannot be made: {parent} is not a directory"
            yield Finding("fail", "home", text, f"mv {quote_path(parent)} {quote_path(parent)}.old")
        elif not os.access(parent, os.W_OK | os.X_OK):
            yield Finding("fail", "home", f"{home} cannot be made: {parent} is closed to you")
        else:
            yield Finding(
                "warn", "home", f"{home} is not there yet", add_home_option("crabtalkd run", home)
            )
        return
    if not home.is_dir():
        yield Finding(
            "fail",
            "home",
            f"{home} is not a directory",
            f"mv {quote_path(home)} {quote_path(home)}.old",
        )
        return
    status = home.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        yield Finding(
            "fail",
            "home",
            f"{home} belongs to user {status.st_uid}, not to you",
            f"sudo chown -R {os.geteuid()} {quote_path(home)}",
        )
    elif not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("fail", "home", f"{home} is closed to you", f"chmod u+rwx {quote_path(home)}")
    elif mode & 0o022:
        yield Finding(
            "fail", "home", f"others can write to {home}", f"chmod 700 {quote_path(home)}"
        )
    elif mode & 0o055:
        yield Finding(
            "warn", "home", f"others can look into {home}", f"chmod 700 {quote_path(home)}"
        )
    else:
        yield Finding("ok", "home", str(home))


def check_permissions(home: Path) -> Iterator[Finding]:
    """Check the files that hold secrets: the daemon must be able to read them, others must not."""
    private = [home / "config.toml", home / "run" / "token", *list_files(home / "agents", "*.toml")]
    private += list_files(home / "tokens", "*")
    files = [path for path in private if path.is_file()]
    # If others cannot enter the home, the modes of the files in it do not matter.
    is_reachable = home.exists() and bool(home.stat().st_mode & 0o011)
    open_to_others = [path for path in files if is_reachable and path.stat().st_mode & 0o077]
    closed = [path for path in files if not os.access(path, os.R_OK)]
    if closed:
        yield Finding(
            "fail",
            "permissions",
            f"{format_paths(closed)} cannot be read",
            format_chmod("u+rwX", closed, home),
        )
    if open_to_others:
        yield Finding(
            "warn",
            "permissions",
            f"{format_paths(open_to_others)} can be read by others, secrets and all",
            format_chmod("go=", open_to_others, home),
        )
    if not closed and not open_to_others and files:
        count = len(files)
        subject = "1 file with secrets is" if count == 1 else f"{count} files with secrets are"
        yield Finding("ok", "permissions", f"{subject} yours alone")


def check_disk(home: Path) -> Iterator[Finding]:
    directory = find_existing_parent(home)
    free = shutil.disk_usage(directory).free
    filesystem = os.statvfs(directory)
    text = f"{format_size(free)} free on the disk of {directory}"
    if filesystem.f_flag & os.ST_RDONLY:
        yield Finding(
            "fail",
            "disk",
            f"{directory} is on a disk that cannot be written to",
            f"findmnt -T {quote_path(directory)}",
        )
    elif filesystem.f_files and not filesystem.f_favail:
        yield Finding(
            "fail",
            "disk",
            f"no more files fit on the disk of {directory}",
            f"df -i {quote_path(directory)}",
        )
    elif free < NO_DISK_SPACE:
        yield Finding("fail", "disk", f"only {text}", f"du -sh {quote_path(directory)}/*")
    elif free < LOW_DISK_SPACE:
        yield Finding("warn", "disk", f"only {text}", f"du -sh {quote_path(directory)}/*")
    else:
        yield Finding("ok", "disk", text)


def check_configuration(home: Path) -> Iterator[Finding]:
    path = home / "config.toml"
    edit = f"${{EDITOR:-vi}} {quote_path(path)}"
    if not path.exists():
        yield Finding("ok", "config", "no config.toml: everything is as it is by default")
        return
    try:
        parse_toml_file(path)
    except ValueError as error:
        yield Finding("fail", "config", f"{path} is not valid TOML: {error}", edit)
        return
    problem, ignored = check_with_daemon_program(home)
    for sentence in ignored:
        yield Finding("warn", "config", sentence, edit)
    if problem:
        yield Finding("fail", "config", problem, edit)
    elif not ignored:
        yield Finding("ok", "config", f"{path} can be read")


def check_with_daemon_program(home: Path) -> tuple[str, list[str]]:
    """Ask the daemon's program about the configuration.

    Returns why no daemon can use it, and the parts no daemon reads. Both are empty if the program
    is missing or of a version that cannot tell.
    """
    from .daemon_startup import find_daemon_program

    try:
        words = [find_daemon_program(), "check", "--json", "--home", str(home)]
        process = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROGRAM_TIMEOUT,
            check=False,
        )
        result = json.loads(process.stdout)
    except (CommandError, OSError, subprocess.TimeoutExpired, ValueError):
        return "", []
    return str(result["problem"]), list(result["ignored"])


def check_agents(home: Path) -> Iterator[Finding]:
    paths = list_files(home / "agents", "*.toml")
    for path in paths:
        try:
            parse_toml_file(path)
        except ValueError as error:
            yield Finding(
                "fail",
                "agents",
                f"{path} is not valid TOML: {error}",
                f"${{EDITOR:-vi}} {quote_path(path)}",
            )


def check_conversations(home: Path) -> Iterator[Finding]:
    damaged = list_files(home / "sessions", "*.damaged")
    if damaged:
        yield Finding(
            "warn",
            "conversations",
            f"lines that could not be read were put aside in {format_paths(damaged)}",
            f"less {quote_path(damaged[0])}",
        )


def check_records(home: Path) -> Iterator[Finding]:
    """Report damaged records, which the daemon's program finds.

    The daemon skips a damaged record of a conversation, and still uses one of a memory.
    """
    if not any((home / name).is_dir() for name in ("sessions", "memory")):
        return
    report = verify_records(home)
    if report is None:
        yield Finding("warn", "records", "checksums were not looked at: crabtalkd did not do it")
        return
    for record in report["damage"]:
        text = f"{record['file']}: {record['problem']}; {record['next_step']}"
        if "line" in record:
            show_command = f"sed -n {record['line']}p {shlex.quote(record['file'])}"
            yield Finding("warn", "records", text, show_command)
        else:
            yield Finding("fail", "records", text)
    if report["unnamed"]:
        text = f"{report['unnamed']} more damaged records are not listed"
        yield Finding("warn", "records", text, add_home_option("crabtalkd verify", home))
    if report["unchecked"]:
        text = f"{report['unchecked']} files were not looked at: it would have taken too long"
        yield Finding("warn", "records", text, add_home_option("crabtalkd verify", home))
    if not report["damage"] and report["checked"]:
        count = report["checked"]
        files_checked = "1 file" if count == 1 else f"{count} files"
        yield Finding("ok", "records", f"no damage in {files_checked}")


def verify_records(home: Path) -> dict[str, Any] | None:
    """Return the report of `crabtalkd verify`; None if it is missing or of another version."""
    from .daemon_startup import find_daemon_program

    try:
        words = [
            find_daemon_program(),
            "verify",
            "--json",
            "--seconds",
            str(VERIFY_SECONDS),
            "--home",
            str(home),
        ]
        process = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERIFY_SECONDS + PROGRAM_TIMEOUT,
            check=False,
        )
        report = json.loads(process.stdout)
    except (CommandError, OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return report if isinstance(report, dict) and "damage" in report else None


def check_ports(home: Path) -> Iterator[Finding]:
    from crabtalk.service import list_port_files

    for file in list_port_files(home):
        if file.is_listening():
            yield Finding("ok", "components", f"{file.name} listens on port {file.read_port()}")
        else:
            yield Finding(
                "warn",
                "components",
                f"nothing listens where {file.path} says",
                f"rm {quote_path(file.path)}",
            )


def check_logs(home: Path) -> Iterator[Finding]:
    logs = home / "logs"
    if not logs.is_dir():
        return
    sizes = {path: path.stat().st_size for path in list_files(logs, "*") if path.is_file()}
    total = sum(sizes.values())
    if total > LARGE_LOGS:
        largest = max(sizes, key=lambda path: sizes[path])
        yield Finding(
            "warn",
            "logs",
            f"{logs} has {format_size(total)}",
            f"truncate -s 0 {quote_path(largest)}",
        )
    else:
        yield Finding("ok", "logs", f"{format_size(total)} in {logs}")


def check_index(home: Path) -> Iterator[Finding]:
    index = home / "index" / "sessions"
    if not index.exists():
        return
    remove_command = f"rm -r {quote_path(home / 'index')}"
    if not index.is_dir() or not os.access(index, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "fail",
            "index",
            f"{index} cannot be used; it is built anew when it is gone",
            remove_command,
        )
        return
    total = sum(path.stat().st_size for path in list_files(index, "**/*") if path.is_file())
    yield Finding("ok", "index", f"{format_size(total)} in {index}")


CHECKS: dict[str, HomeCheck] = {
    "home": check_home,
    "permissions": check_permissions,
    "disk": check_disk,
    "config": check_configuration,
    "agents": check_agents,
    "conversations": check_conversations,
    "records": check_records,
    "components": check_ports,
    "logs": check_logs,
    "index": check_index,
}


# ── Helpers ────────────────────────────────────────────────────────────────────────────────────


def find_existing_parent(home: Path) -> Path:
    """Return the home, or the nearest parent that exists."""
    return next(path for path in (home, *home.parents) if path.exists())


def list_files(directory: Path, pattern: str) -> list[Path]:
    """List matching files, at most MAX_FILES; an empty list if there is no directory."""
    return sorted(islice(directory.glob(pattern), MAX_FILES))


def parse_toml_file(path: Path) -> dict[str, Any]:
    """Parse a file. Raises ValueError, which UnicodeDecodeError and TOMLDecodeError derive from."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def find_missing_variables(home: Path) -> list[str]:
    """Return the variables that the configuration needs and our environment does not have."""
    try:
        document = parse_toml_file(home / "config.toml")
    except (OSError, ValueError):
        return []
    tables = repr([document.get("llm"), document.get("providers")])
    return sorted(set(VARIABLE.findall(tables)) - os.environ.keys())


def format_paths(paths: list[Path]) -> str:
    names = ", ".join(map(str, paths[:MAX_NAMED_FILES]))
    return (
        names
        if len(paths) <= MAX_NAMED_FILES
        else f"{names} and {len(paths) - MAX_NAMED_FILES} more"
    )


def format_chmod(mode: str, paths: list[Path], home: Path) -> str:
    if len(paths) <= MAX_NAMED_FILES:
        return f"chmod {mode} {' '.join(map(quote_path, paths))}"
    return f"chmod -R {mode} {quote_path(home)}"


def add_home_option(command: str, home: Path) -> str:
    """Return one of our commands, with --home unless this is the default home."""
    from crabtalk.transport import default_home

    return command if home == default_home() else f"{command} --home {quote_path(home)}"


def quote_path(path: Path) -> str:
    return shlex.quote(str(path))


def format_size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
