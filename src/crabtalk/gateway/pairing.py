"""Pairing codes: the program prints one, a person sends it and is added to the allow-list.

The code's hash is stored in `run/<name>.pairing`, so that one process can print the code while
another, the gateway, waits for it. It works once, for ten minutes and five tries in all.
"""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from crabtalk.transport import RunFiles, replace_file

# Without letters that look alike; 40 bits against MAX_TRIES tries.
CODE_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
CODE_LENGTH = 8
LIFETIME_SECONDS = 600.0
MAX_TRIES = 5


class PairingCode:
    def __init__(self, home: Path, name: str, *, clock: Callable[[], float] = time.time) -> None:
        self._path = RunFiles.for_home(home).directory / f"{name}.pairing"
        self._clock = clock

    def create_code(self) -> str:
        """Make a new code; the previous one stops working. Raises OSError."""
        code = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(hash_code(code), self._clock() + LIFETIME_SECONDS, MAX_TRIES)
        return code

    @property
    def is_open(self) -> bool:
        """Whether a code is waiting to be sent."""
        return self._read() is not None

    def claim_code(self, text: str) -> bool:
        """Whether this is the code. The right one is used up; a wrong one costs a try."""
        stored = self._read()
        if stored is None:
            return False
        expected, until, tries = stored
        if hmac.compare_digest(hash_code(text), expected):
            self._path.unlink(missing_ok=True)
            return True
        if tries <= 1:
            self._path.unlink(missing_ok=True)
        else:
            self._write(expected, until, tries - 1)
        return False

    def _write(self, expected: str, until: float, tries: int) -> None:
        data = json.dumps({"hash": expected, "until": until, "tries": tries})
        replace_file(self._path, data.encode())

    def _read(self) -> tuple[str, float, int] | None:
        try:
            document = json.loads(self._path.read_bytes())
            expected, until, tries = (
                str(document["hash"]),
                float(document["until"]),
                int(document["tries"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if self._clock() > until or tries < 1:
            return None
        return expected, until, tries


def normalize_code(code: str) -> str:
    """The code without spaces and hyphens, in upper case."""
    return "".join(code.split()).replace("-", "").upper()


def hash_code(code: str) -> str:
    return hashlib.sha256(normalize_code(code).encode(errors="replace")).hexdigest()
