"""Repositories: where manifests and what they speak of come from. A git repository or a directory.

Strangers' repositories are copied, never run: no hooks, no submodules, no odd transports.
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

# A clone is one commit deep; what takes longer is stuck.
CLONE_TIMEOUT = 300
REMOTE_PATTERN = re.compile(r"(https|ssh)://.+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:.+")
LOCAL_SCHEME = "file://"


def is_address(text: str) -> bool:
    return bool(REMOTE_PATTERN.fullmatch(text)) or text.startswith(LOCAL_SCHEME)


@contextmanager
def open_repository(place: str, branch: str = "", *, may_be_local: bool) -> Iterator[Path]:
    """The files at `place`, a directory or the address of a repository, for a while."""
    if place.startswith("-") or any(ord(character) < 32 for character in place):
        raise CrabupError(f"{place!r} is no repository; name a directory or a URL")
    is_local = not REMOTE_PATTERN.fullmatch(place)
    if is_local and not may_be_local:
        raise CrabupError(
            f"{place!r} is no repository that others can name; it must begin with https:// or ssh://"
        )
    if is_local and not place.startswith(LOCAL_SCHEME):
        directory = Path(place).expanduser().absolute()
        if not directory.is_dir():
            raise CrabupError(f"{place} is no directory; name one, or a URL with https://")
        if not branch:
            yield directory
            return
        place = str(directory)
    with tempfile.TemporaryDirectory(prefix="crabup-") as scratch:
        target = Path(scratch) / "repository"
        clone_repository(place, target, branch, is_local=is_local)
        yield target


def clone_repository(place: str, target: Path, branch: str, *, is_local: bool) -> None:
    if shutil.which("git") is None:
        raise CrabupError("git is not on PATH, and a repository needs it; install git")
    command = [
        *("git", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false"),
        *("clone", "--quiet", "--depth=1", "--single-branch", "--no-tags"),
        "--no-recurse-submodules",
        *([f"--branch={branch}"] if branch else []),
        *("--", f"{LOCAL_SCHEME}{place}" if place.startswith("/") else place, str(target)),
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
        raise CrabupError(f"git did not get {place} in {CLONE_TIMEOUT} s; try again") from None
    if result.returncode != 0:
        said = result.stderr.strip().splitlines()
        raise CrabupError(
            f"cannot get {place}: {said[-1] if said else 'git says nothing'}; check the address"
        )


def make_slug(place: str) -> str:
    """The name of a directory for it: readable, and no other's."""
    readable = re.sub(r"[^A-Za-z0-9-]", "-", place).strip("-")[-48:].strip("-")
    return f"{readable}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}"


def list_files(root: Path) -> list[str]:
    """Everything in a repository but git's own, sorted, as paths with `/`. Links are listed, not
    followed."""
    found = []
    for directory, names, files in os.walk(root):
        here = Path(directory)
        names[:] = [name for name in names if name != ".git"]
        links = [name for name in names if (here / name).is_symlink()]
        found += [(here / name).relative_to(root).as_posix() for name in (*files, *links)]
    return sorted(path for path in found if path != ".git")


def compute_checksum(root: Path, manifest: str) -> str:
    """Of what is in a repository, wherever it came from: paths, contents, and what may be run.

    `manifest`, which holds the checksum, may be in there too and does not count.
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


def read_inside(root: Path, name: str, largest: int) -> bytes | None:
    """A file of a repository, None without one. Raises CommandError for what leads out of it."""
    path = root
    for part in name.split("/"):
        path /= part
        if part in ("", ".", "..") or path.is_symlink():
            raise CrabupError(f"{name} leads out of the repository or is a link; report it")
    if not path.exists():
        return None
    if not path.is_file():
        raise CrabupError(f"{name} in the repository is not a file; report it")
    if path.stat().st_size > largest:
        raise CrabupError(f"{name} in the repository has more than {largest} bytes; report it")
    return path.read_bytes()
