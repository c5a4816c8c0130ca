"""Repositories of manifests and packages: a git repository or a directory.

Strangers' repositories are copied, never run: no hooks, no submodules, no unusual transports.
"""

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import CrabupError

# Seconds. A clone is one commit deep; one that takes longer hangs.
CLONE_TIMEOUT = 300
REMOTE_PATTERN = re.compile(r"(https|ssh)://.+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:.+")
LOCAL_SCHEME = "file://"


def is_address(text: str) -> bool:
    return bool(REMOTE_PATTERN.fullmatch(text)) or text.startswith(LOCAL_SCHEME)


@contextmanager
def open_repository(location: str, branch: str = "", *, may_be_local: bool) -> Iterator[Path]:
    """The files at `location`, a directory or a repository's address, while the context lasts."""
    if location.startswith("-") or any(ord(character) < 32 for character in location):
        raise CrabupError(f"{location!r} is no repository; name a directory or a URL")
    is_local = not REMOTE_PATTERN.fullmatch(location)
    if is_local and not may_be_local:
        raise CrabupError(
            f"{location!r} is no repository that others can name; it must begin with https:// or ssh://"
        )
    if is_local and not location.startswith(LOCAL_SCHEME):
        directory = Path(location).expanduser().absolute()
        if not directory.is_dir():
            raise CrabupError(f"{location} is no directory; name one, or a URL with https://")
        if not branch:
            yield directory
            return
        location = str(directory)
    with tempfile.TemporaryDirectory(prefix="crabup-") as scratch:
        target = Path(scratch) / "repository"
        clone_repository(location, target, branch, is_local=is_local)
        yield target


def clone_repository(location: str, target: Path, branch: str, *, is_local: bool) -> None:
    if shutil.which("git") is None:
        raise CrabupError("git is not on PATH, and a repository needs it; install git")
    command = [
        *("git", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false"),
        *("clone", "--quiet", "--depth=1", "--single-branch", "--no-tags"),
        "--no-recurse-submodules",
        *([f"--branch={branch}"] if branch else []),
        *("--", f"{LOCAL_SCHEME}{location}" if location.startswith("/") else location, str(target)),
    ]
    environment = {
        **os.environ,
        "GIT_ALLOW_PROTOCOL": "file" if is_local else "https:ssh",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
    }
    try:
        result = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CLONE_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CrabupError(f"git did not get {location} in {CLONE_TIMEOUT} s; try again") from None
    if result.returncode != 0:
        error_lines = result.stderr.strip().splitlines()
        raise CrabupError(
            f"cannot get {location}: {error_lines[-1] if error_lines else 'git says nothing'}; "
            "check the address"
        )


def make_slug(location: str) -> str:
    """A directory name for a location: readable, and different for every location."""
    readable = re.sub(r"[^A-Za-z0-9-]", "-", location).strip("-")[-48:].strip("-")
    return f"{readable}-{hashlib.sha256(os.fsencode(location)).hexdigest()[:8]}"


def list_files(root: Path) -> list[str]:
    """All files of a repository except git's own, sorted, as paths with `/`. Links are listed, not
    followed."""
    paths = []
    for directory, names, files in os.walk(root):
        here = Path(directory)
        names[:] = [name for name in names if name != ".git"]
        links = [name for name in names if (here / name).is_symlink()]
        paths += [(here / name).relative_to(root).as_posix() for name in (*files, *links)]
    return sorted(path for path in paths if path != ".git")


def compute_checksum(root: Path, manifest: str) -> str:
    """A checksum over the paths, contents and executable bits of a repository.

    `manifest` is the file that holds the checksum, so it does not count.
    """
    total = hashlib.sha256()
    for name in list_files(root):
        if name == manifest:
            continue
        path = root / name
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            kind, data = "link", os.fsencode(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            kind, data = "run" if status.st_mode & 0o100 else "file", path.read_bytes()
        else:
            raise CrabupError(f"{name} is neither a file nor a link; leave it out")
        total.update(
            f"{kind} {name}\0{hashlib.sha256(data).hexdigest()}\n".encode(errors="surrogateescape")
        )
    return f"sha256:{total.hexdigest()}"


def read_inside(root: Path, name: str, max_bytes: int) -> bytes | None:
    """Read a file of a repository; None if it is missing. Raises CrabupError for a path that leads
    out of the repository."""
    path = root
    for part in name.split("/"):
        path /= part
        if part in ("", ".", "..") or path.is_symlink():
            raise CrabupError(f"{name} leads out of the repository or is a link; report it")
    if not path.exists():
        return None
    if not path.is_file():
        raise CrabupError(f"{name} in the repository is not a file; report it")
    if path.stat().st_size > max_bytes:
        raise CrabupError(f"{name} in the repository has more than {max_bytes} bytes; report it")
    return path.read_bytes()
