"""A component's log: each record is one line, on stderr and in `logs/<name>.log`.

A service manager may have pointed stderr at that very file, so that it also gets what a crash
prints; the lines are then written once.
"""

import logging
import os
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from .errors import ComponentError

MAX_FILE_BYTES = 10 * 1024 * 1024
BACKUP_COUNT = 3
# They log every request at INFO, the level of the components' own messages.
NOISY_LOGGERS = ("mcp", "uvicorn", "sse_starlette", "httpx", "httpx2", "asyncio")
# Invisible characters: they change the direction of a line, join or separate words, or carry hidden
# text.
INVISIBLE_CODES = (
    *(0xAD, 0x61C, 0x180E, 0xFEFF),
    *range(0x200B, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)
# Characters that begin a new line in some program, control a terminal, or are invisible.
ESCAPED_CODES = (*range(32), *range(127, 160), 0x2028, 0x2029, *INVISIBLE_CODES)
CONTROL_ESCAPES = {code: ascii(chr(code))[1:-1] for code in ESCAPED_CODES}


@cache
def build_json_escapes() -> dict[int, str]:
    """CONTROL_ESCAPES for JSON, whose encoder escapes codes below 127 itself. Built only for logs
    in JSON, because it takes as much memory as CONTROL_ESCAPES."""
    return {code: escape_json(code) for code in ESCAPED_CODES if code > 126}


def escape_json(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    # Characters beyond the BMP are two surrogates in JSON.
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


class OneLineFormatter(logging.Formatter):
    """The line format of the daemon's log, with times in UTC."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-5s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        seconds, milliseconds = divmod(round(record.created * 1000), 1000)
        return time.strftime(f"%Y-%m-%dT%H:%M:%S.{milliseconds:03}Z", time.gmtime(seconds))

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(CONTROL_ESCAPES)


def start_log(path: Path, *, verbose: bool = False) -> None:
    """Take over the logging of this process, whatever a library has set up before."""
    # Late: the daemon imports this module for `is_stderr` alone, and must not load pickle.
    from logging.handlers import RotatingFileHandler

    try:
        file = RotatingFileHandler(
            path, maxBytes=MAX_FILE_BYTES, backupCount=BACKUP_COUNT, encoding="utf-8"
        )
        path.chmod(0o600)
    except OSError as error:
        raise ComponentError(f"cannot write {path}: {error.strerror}; move it away") from None
    handlers: list[logging.Handler] = [file]
    if not is_stderr(path):
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(OneLineFormatter())
    logging.basicConfig(
        handlers=handlers, level=logging.DEBUG if verbose else logging.INFO, force=True
    )
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


def is_stderr(path: Path) -> bool:
    """Whether stderr is written to `path` already."""
    with suppress(OSError, ValueError, AttributeError):
        return os.path.samestat(os.fstat(sys.stderr.fileno()), path.stat())
    return False
