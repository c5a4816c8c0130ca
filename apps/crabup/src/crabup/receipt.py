"""Receipts: what a package has added to a home, so that exactly that can be taken away again.

`packages/<name>.receipt.json` is there before the first file and gone after the last.
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
    """Paths are those in the home. `files` have the hash of what was written, `blocks` the text
    that was added to a file of somebody's."""

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
    """None when the package is not there. Raises CommandError for a receipt nobody can trust."""
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
        is_right = receipt.package == package and all(map(is_inside, paths))
        is_right = is_right and all(isinstance(each, str) for each in receipt.commands)
        is_right = is_right and "/" not in receipt.repository and receipt.repository != ".."
    except (TypeError, AttributeError):
        is_right = False
    if not is_right:
        raise CrabupError(f"{path} is damaged; remove by hand what it still names, and the file")
    return receipt


def is_inside(path: str) -> bool:
    parts = path.split("/")
    return parts[0] in ALLOWED_ROOTS and not {"", ".", ".."} & set(parts)


def iterate_receipts(home: Path) -> Iterator[Receipt]:
    """Of all packages, by name; damaged ones are passed over."""
    for path in sorted((home / "packages").glob(f"*{RECEIPT_SUFFIX}")):
        with suppress(CrabupError):
            if (found := read_receipt(home, path.name.removesuffix(RECEIPT_SUFFIX))) is not None:
                yield found


def hash_data(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
