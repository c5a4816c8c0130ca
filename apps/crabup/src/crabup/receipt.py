"""Receipts: what a package has added to a home, so that exactly that can be removed again.

`packages/<name>.receipt.json` is written before the first file and removed after the last.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crabtalk.transport import replace_file

from .errors import CrabupError

RECEIPT_SUFFIX = ".receipt.json"
ALLOWED_ROOTS = ("agents", "skills", "packages", ".cache")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Paths are relative to the home. `files` has the hash of each written file, `blocks` the text
    that was appended to a file of the user's."""

    package: str
    files: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    blocks: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    repository: str = ""

    def write(self, home: Path) -> None:
        data = json.dumps(asdict(self), indent=2).encode() + b"\n"
        replace_file(make_receipt_path(home, self.package), data)

    def with_commands(self, commands: list[str]) -> "Receipt":
        return replace(self, commands=commands)


def make_receipt_path(home: Path, package: str) -> Path:
    return home / "packages" / f"{package}{RECEIPT_SUFFIX}"


def read_receipt(home: Path, package: str) -> Receipt | None:
    """None if the package is not installed. Raises CrabupError for a damaged receipt."""
    path = make_receipt_path(home, package)
    try:
        value: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        value = None
    try:
        receipt = Receipt(**value)
        paths = [*receipt.files, *receipt.directories, *receipt.blocks]
        is_valid = receipt.package == package and all(map(is_inside, paths))
        is_valid = is_valid and all(isinstance(command, str) for command in receipt.commands)
        is_valid = is_valid and "/" not in receipt.repository and receipt.repository != ".."
    except (TypeError, AttributeError):
        is_valid = False
    if not is_valid:
        raise CrabupError(f"{path} is damaged; remove by hand what it still names, and the file")
    return receipt


def is_inside(path: str) -> bool:
    parts = path.split("/")
    return parts[0] in ALLOWED_ROOTS and not {"", ".", ".."} & set(parts)


def iterate_receipts(home: Path) -> Iterator[Receipt]:
    """The receipts of all packages by name; damaged ones are skipped."""
    for path in sorted((home / "packages").glob(f"*{RECEIPT_SUFFIX}")):
        with suppress(CrabupError):
            if (receipt := read_receipt(home, path.name.removesuffix(RECEIPT_SUFFIX))) is not None:
                yield receipt


def hash_data(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
