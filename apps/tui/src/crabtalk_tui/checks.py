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

from .complaints import CommandError

MIB = 1 << 20
LITTLE_ROOM = 1024 * MIB
NO_ROOM = 100 * MIB
LARGE_LOGS = 500 * MIB
MOST_FILES = 10_000  # looked at of a directory
NAMED = 3  # of many files of one sort
VERIFYING = 10.0  # seconds for looking at checksums
PATIENCE = 20.0  # seconds for the daemon's program to read a file
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`mend` is a command, empty where there is none or nothing to mend."""

    level: Level
    what: str
    text: str
    mend: str = ""


Check = Callable[[Path], Iterable[Finding]]


def examined(home: Path) -> Iterator[Finding]:
    """What the files of a home tell, in the order a person would look."""
    for what, check in CHECKS.items():
        try:
            yield from check(home)
        except OSError as error:
            yield Finding("fail", what, f"cannot be looked at: {error}")


def look_at_home(home: Path) -> Iterator[Finding]:
    if not home.exists():
        place = standing(home)
        if not place.is_dir():
            text = f"{home} cannot be made: {place} is not a directory"
            yield Finding("fail", "home", text, f"mv {quoted(place)} {quoted(place)}.old")
        elif not os.access(place, os.W_OK | os.X_OK):
            yield Finding("fail", "home", f"{home} cannot be made: {place} is closed to you")
        else:
            yield Finding("warn", "home", f"{home} is not there yet", here("crabtalkd run", home))
        return
    if not home.is_dir():
        yield Finding(
            "fail", "home", f"{home} is not a directory", f"mv {quoted(home)} {quoted(home)}.old"
        )
        return
    status = home.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        yield Finding(
            "fail",
            "home",
            f"{home} belongs to user {status.st_uid}, not to you",
            f"sudo chown -R {os.geteuid()} {quoted(home)}",
        )
    elif not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("fail", "home", f"{home} is closed to you", f"chmod u+rwx {quoted(home)}")
    elif mode & 0o022:
        yield Finding("fail", "home", f"others can write to {home}", f"chmod 700 {quoted(home)}")
    elif mode & 0o055:
        yield Finding("warn", "home", f"others can look into {home}", f"chmod 700 {quoted(home)}")
    else:
        yield Finding("ok", "home", str(home))


def look_at_permissions(home: Path) -> Iterator[Finding]:
    """Of what holds secrets, and of what the daemon must be able to read."""
    private = [home / "config.toml", home / "run" / "token", *files(home / "agents", "*.toml")]
    private += files(home / "tokens", "*")
    there = [path for path in private if path.is_file()]
    # Behind a door that is closed to others it does not matter what is open.
    is_reachable = home.exists() and bool(home.stat().st_mode & 0o011)
    open_to_others = [path for path in there if is_reachable and path.stat().st_mode & 0o077]
    closed = [path for path in there if not os.access(path, os.R_OK)]
    if closed:
        yield Finding(
            "fail", "permissions", f"{some(closed)} cannot be read", chmod("u+rwX", closed, home)
        )
    if open_to_others:
        yield Finding(
            "warn",
            "permissions",
            f"{some(open_to_others)} can be read by others, secrets and all",
            chmod("go=", open_to_others, home),
        )
    if not closed and not open_to_others and there:
        count = len(there)
        they = "1 file with secrets is" if count == 1 else f"{count} files with secrets are"
        yield Finding("ok", "permissions", f"{they} yours alone")


def look_at_disk(home: Path) -> Iterator[Finding]:
    place = standing(home)
    free = shutil.disk_usage(place).free
    about = os.statvfs(place)
    text = f"{size(free)} free on the disk of {place}"
    if about.f_flag & os.ST_RDONLY:
        yield Finding(
            "fail",
            "disk",
            f"{place} is on a disk that cannot be written to",
            f"findmnt -T {quoted(place)}",
        )
    elif about.f_files and not about.f_favail:
        yield Finding(
            "fail", "disk", f"no more files fit on the disk of {place}", f"df -i {quoted(place)}"
        )
    elif free < NO_ROOM:
        yield Finding("fail", "disk", f"only {text}", f"du -sh {quoted(place)}/*")
    elif free < LITTLE_ROOM:
        yield Finding("warn", "disk", f"only {text}", f"du -sh {quoted(place)}/*")
    else:
        yield Finding("ok", "disk", text)


def look_at_configuration(home: Path) -> Iterator[Finding]:
    path = home / "config.toml"
    edit = f"${{EDITOR:-vi}} {quoted(path)}"
    if not path.exists():
        yield Finding("ok", "config", "no config.toml: everything is as it is by default")
        return
    try:
        parsed(path)
    except ValueError as error:
        yield Finding("fail", "config", f"{path} is not valid TOML: {error}", edit)
        return
    problem, ignored = judged(home)
    for sentence in ignored:
        yield Finding("warn", "config", sentence, edit)
    if problem:
        yield Finding("fail", "config", problem, edit)
    elif not ignored:
        yield Finding("ok", "config", f"{path} can be read")


def judged(home: Path) -> tuple[str, list[str]]:
    """Why no daemon could use the configuration, and what of it none reads: the daemon's program
    knows. Where it is not there, or is of another age, nobody can tell."""
    from .starting import program

    try:
        words = [program(), "check", "--json", "--home", str(home)]
        said = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False
        )
        found = json.loads(said.stdout)
    except (CommandError, OSError, subprocess.TimeoutExpired, ValueError):
        return "", []
    return str(found["problem"]), list(found["ignored"])


def look_at_agents(home: Path) -> Iterator[Finding]:
    found = files(home / "agents", "*.toml")
    for path in found:
        try:
            parsed(path)
        except ValueError as error:
            yield Finding(
                "fail",
                "agents",
                f"{path} is not valid TOML: {error}",
                f"${{EDITOR:-vi}} {quoted(path)}",
            )


def look_at_conversations(home: Path) -> Iterator[Finding]:
    damaged = files(home / "sessions", "*.damaged")
    if damaged:
        yield Finding(
            "warn",
            "conversations",
            f"lines that could not be read were put aside in {some(damaged)}",
            f"less {quoted(damaged[0])}",
        )


def look_at_records(home: Path) -> Iterator[Finding]:
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
        yield Finding("warn", "records", text, here("crabtalkd verify", home))
    if found["unchecked"]:
        text = f"{found['unchecked']} files were not looked at: it would have taken too long"
        yield Finding("warn", "records", text, here("crabtalkd verify", home))
    if not found["damage"] and found["checked"]:
        count = found["checked"]
        files_checked = "1 file" if count == 1 else f"{count} files"
        yield Finding("ok", "records", f"no damage in {files_checked}")


def verify_records(home: Path) -> dict[str, Any] | None:
    """What `crabtalkd verify` says; None where it cannot be asked, or is of another age."""
    from .starting import program

    try:
        words = [program(), "verify", "--json", "--seconds", str(VERIFYING), "--home", str(home)]
        said = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERIFYING + PATIENCE,
            check=False,
        )
        found = json.loads(said.stdout)
    except (CommandError, OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return found if isinstance(found, dict) and "damage" in found else None


def look_at_ports(home: Path) -> Iterator[Finding]:
    from crabtalk.component import port_files

    for file in port_files(home):
        if file.is_listening():
            yield Finding("ok", "components", f"{file.name} listens on port {file.read()}")
        else:
            yield Finding(
                "warn",
                "components",
                f"nobody listens where {file.path} says",
                f"rm {quoted(file.path)}",
            )


def look_at_logs(home: Path) -> Iterator[Finding]:
    logs = home / "logs"
    if not logs.is_dir():
        return
    sizes = {path: path.stat().st_size for path in files(logs, "*") if path.is_file()}
    total = sum(sizes.values())
    if total > LARGE_LOGS:
        largest = max(sizes, key=lambda path: sizes[path])
        yield Finding(
            "warn", "logs", f"{logs} has {size(total)}", f"truncate -s 0 {quoted(largest)}"
        )
    else:
        yield Finding("ok", "logs", f"{size(total)} in {logs}")


def look_at_index(home: Path) -> Iterator[Finding]:
    index = home / "index" / "sessions"
    if not index.exists():
        return
    again = f"rm -r {quoted(home / 'index')}"
    if not index.is_dir() or not os.access(index, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "fail", "index", f"{index} cannot be used; it is built anew when it is gone", again
        )
        return
    total = sum(path.stat().st_size for path in files(index, "**/*") if path.is_file())
    yield Finding("ok", "index", f"{size(total)} in {index}")


CHECKS: dict[str, Check] = {
    "home": look_at_home,
    "permissions": look_at_permissions,
    "disk": look_at_disk,
    "config": look_at_configuration,
    "agents": look_at_agents,
    "conversations": look_at_conversations,
    "records": look_at_records,
    "components": look_at_ports,
    "logs": look_at_logs,
    "index": look_at_index,
}


# ── What they look with ────────────────────────────────────────────────────────────────────────


def standing(home: Path) -> Path:
    """The home, or what it would be made in."""
    return next(path for path in (home, *home.parents) if path.exists())


def files(directory: Path, pattern: str) -> list[Path]:
    """None where there is no directory."""
    return sorted(islice(directory.glob(pattern), MOST_FILES))


def parsed(path: Path) -> dict[str, Any]:
    """Raises ValueError, UnicodeDecodeError and TOMLDecodeError being of its kind."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def missing_variables(home: Path) -> list[str]:
    """Those the configuration takes from the environment, and ours has not."""
    try:
        document = parsed(home / "config.toml")
    except (OSError, ValueError):
        return []
    tables = repr([document.get("llm"), document.get("providers")])
    return sorted(set(VARIABLE.findall(tables)) - os.environ.keys())


def some(paths: list[Path]) -> str:
    named = ", ".join(map(str, paths[:NAMED]))
    return named if len(paths) <= NAMED else f"{named} and {len(paths) - NAMED} more"


def chmod(mode: str, paths: list[Path], home: Path) -> str:
    if len(paths) <= NAMED:
        return f"chmod {mode} {' '.join(map(quoted, paths))}"
    return f"chmod -R {mode} {quoted(home)}"


def here(command: str, home: Path) -> str:
    """A command of ours, about that home."""
    from crabtalk.transport import default_home

    return command if home == default_home() else f"{command} --home {quoted(home)}"


def quoted(path: Path) -> str:
    return shlex.quote(str(path))


def size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
