"""Checks: what can be wrong with a home and its daemon, and the command that mends it.

Files are looked at here, the daemon is asked over the wire; nothing is written, and no daemon is
started. A check that fails itself is a finding too.
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
MAX_FILES = 10_000  # looked at of a directory
MAX_NAMED_FILES = 3  # of many files of one sort
VERIFY_SECONDS = 10.0  # seconds for looking at checksums
PROGRAM_TIMEOUT = 20.0  # seconds for the daemon's program to read a file
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`mend` is a command, empty where there is none or nothing to mend."""

    level: Level
    what: str
    text: str
    mend: str = ""


HomeCheck = Callable[[Path], Iterable[Finding]]


def run_home_checks(home: Path) -> Iterator[Finding]:
    """What the files of a home tell, in the order a person would look."""
    for what, check in CHECKS.items():
        try:
            yield from check(home)
        except OSError as error:
            yield Finding("fail", what, f"cannot be looked at: {error}")


def check_home(home: Path) -> Iterator[Finding]:
    if not home.exists():
        place = find_existing_parent(home)
        if not place.is_dir():
            text = f"{home} cannot be made: {place} is not a directory"
            yield Finding("fail", "home", text, f"mv {quote_path(place)} {quote_path(place)}.old")
        elif not os.access(place, os.W_OK | os.X_OK):
            yield Finding("fail", "home", f"{home} cannot be made: {place} is closed to you")
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
    """Of what holds secrets, and of what the daemon must be able to read."""
    private = [home / "config.toml", home / "run" / "token", *list_files(home / "agents", "*.toml")]
    private += list_files(home / "tokens", "*")
    there = [path for path in private if path.is_file()]
    # Behind a door that is closed to others it does not matter what is open.
    is_reachable = home.exists() and bool(home.stat().st_mode & 0o011)
    open_to_others = [path for path in there if is_reachable and path.stat().st_mode & 0o077]
    closed = [path for path in there if not os.access(path, os.R_OK)]
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
    if not closed and not open_to_others and there:
        count = len(there)
        they = "1 file with secrets is" if count == 1 else f"{count} files with secrets are"
        yield Finding("ok", "permissions", f"{they} yours alone")


def check_disk(home: Path) -> Iterator[Finding]:
    place = find_existing_parent(home)
    free = shutil.disk_usage(place).free
    about = os.statvfs(place)
    text = f"{format_size(free)} free on the disk of {place}"
    if about.f_flag & os.ST_RDONLY:
        yield Finding(
            "fail",
            "disk",
            f"{place} is on a disk that cannot be written to",
            f"findmnt -T {quote_path(place)}",
        )
    elif about.f_files and not about.f_favail:
        yield Finding(
            "fail",
            "disk",
            f"no more files fit on the disk of {place}",
            f"df -i {quote_path(place)}",
        )
    elif free < NO_DISK_SPACE:
        yield Finding("fail", "disk", f"only {text}", f"du -sh {quote_path(place)}/*")
    elif free < LOW_DISK_SPACE:
        yield Finding("warn", "disk", f"only {text}", f"du -sh {quote_path(place)}/*")
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
    """Why no daemon could use the configuration, and what of it none reads: the daemon's program
    knows. Where it is not there, or is of another age, nobody can tell."""
    from .daemon_startup import find_daemon_program

    try:
        words = [find_daemon_program(), "check", "--json", "--home", str(home)]
        said = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROGRAM_TIMEOUT,
            check=False,
        )
        found = json.loads(said.stdout)
    except (CommandError, OSError, subprocess.TimeoutExpired, ValueError):
        return "", []
    return str(found["problem"]), list(found["ignored"])


def check_agents(home: Path) -> Iterator[Finding]:
    found = list_files(home / "agents", "*.toml")
    for path in found:
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
    """Damaged records of conversations and memories; the daemon's program knows the formats. A
    record of a conversation is left out, an entry of a memory is still used."""
    if not any((home / name).is_dir() for name in ("sessions", "memory")):
        return
    found = verify_records(home)
    if found is None:
        yield Finding("warn", "records", "checksums were not looked at: crabtalkd did not do it")
        return
    for one in found["damage"]:
        text = f"{one['file']}: {one['problem']}; {one['next_step']}"
        if "line" in one:
            show = f"sed -n {one['line']}p {shlex.quote(one['file'])}"
            yield Finding("warn", "records", text, show)
        else:
            yield Finding("fail", "records", text)
    if found["unnamed"]:
        text = f"{found['unnamed']} more damaged records are not listed"
        yield Finding("warn", "records", text, add_home_option("crabtalkd verify", home))
    if found["unchecked"]:
        text = f"{found['unchecked']} files were not looked at: it would have taken too long"
        yield Finding("warn", "records", text, add_home_option("crabtalkd verify", home))
    if not found["damage"] and found["checked"]:
        count = found["checked"]
        files_checked = "1 file" if count == 1 else f"{count} files"
        yield Finding("ok", "records", f"no damage in {files_checked}")


def verify_records(home: Path) -> dict[str, Any] | None:
    """What `crabtalkd verify` says; None where it cannot be asked, or is of another age."""
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
        said = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERIFY_SECONDS + PROGRAM_TIMEOUT,
            check=False,
        )
        found = json.loads(said.stdout)
    except (CommandError, OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return found if isinstance(found, dict) and "damage" in found else None


def check_ports(home: Path) -> Iterator[Finding]:
    from crabtalk.service import list_port_files

    for file in list_port_files(home):
        if file.is_listening():
            yield Finding("ok", "components", f"{file.name} listens on port {file.read_port()}")
        else:
            yield Finding(
                "warn",
                "components",
                f"nobody listens where {file.path} says",
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
    again = f"rm -r {quote_path(home / 'index')}"
    if not index.is_dir() or not os.access(index, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "fail", "index", f"{index} cannot be used; it is built anew when it is gone", again
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


# ── What they look with ────────────────────────────────────────────────────────────────────────


def find_existing_parent(home: Path) -> Path:
    """The home, or what it would be made in."""
    return next(path for path in (home, *home.parents) if path.exists())


def list_files(directory: Path, pattern: str) -> list[Path]:
    """None where there is no directory."""
    return sorted(islice(directory.glob(pattern), MAX_FILES))


def parse_toml_file(path: Path) -> dict[str, Any]:
    """Raises ValueError, UnicodeDecodeError and TOMLDecodeError being of its kind."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def find_missing_variables(home: Path) -> list[str]:
    """Those the configuration takes from the environment, and ours has not."""
    try:
        document = parse_toml_file(home / "config.toml")
    except (OSError, ValueError):
        return []
    tables = repr([document.get("llm"), document.get("providers")])
    return sorted(set(VARIABLE.findall(tables)) - os.environ.keys())


def format_paths(paths: list[Path]) -> str:
    named = ", ".join(map(str, paths[:MAX_NAMED_FILES]))
    return (
        named
        if len(paths) <= MAX_NAMED_FILES
        else f"{named} and {len(paths) - MAX_NAMED_FILES} more"
    )


def format_chmod(mode: str, paths: list[Path], home: Path) -> str:
    if len(paths) <= MAX_NAMED_FILES:
        return f"chmod {mode} {' '.join(map(quote_path, paths))}"
    return f"chmod -R {mode} {quote_path(home)}"


def add_home_option(command: str, home: Path) -> str:
    """A command of ours, about that home."""
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
