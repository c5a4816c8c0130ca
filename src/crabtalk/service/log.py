"""A component's log: every record one line, on stderr and in `logs/<name>.log`.

A platform unit may have pointed stderr at that very file, so that nothing a crash prints is lost;
the lines are then written once.
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
# They tell of every request at the level at which components tell of themselves.
NOISY_LOGGERS = ("mcp", "uvicorn", "sse_starlette", "httpx", "httpx2", "asyncio")
# Characters that nobody sees: they turn the direction of a line around, join or part words, or
# carry hidden text.
INVISIBLE_CODES = (
    *(0xAD, 0x61C, 0x180E, 0xFEFF),
    *range(0x200B, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)
# Whatever begins a new line somewhere, commands a terminal, or is not seen.
ESCAPED_CODES = (*range(32), *range(127, 160), 0x2028, 0x2029, *INVISIBLE_CODES)
CONTROL_ESCAPES = {code: ascii(chr(code))[1:-1] for code in ESCAPED_CODES}


@cache
def build_json_escapes() -> dict[int, str]:
    """CONTROLS for JSON, whose encoder escapes those below 127 itself. Made for logs in JSON only:
    it takes as much memory as CONTROLS."""
    return {code: escape_json(code) for code in ESCAPED_CODES if code > 126}


def escape_json(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"  # as surrogates


class OneLineFormatter(logging.Formatter):
    """As the daemon writes its log, in UTC."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-5s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        seconds, milliseconds = divmod(round(record.created * 1000), 1000)
        return time.strftime(f"%Y-%m-%dT%H:%M:%S.{milliseconds:03}Z", time.gmtime(seconds))

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(CONTROL_ESCAPES)


def start_log(path: Path, *, verbose: bool = False) -> None:
    """Takes over the logging of this process, whatever a library has set up before."""
    # Late: the daemon asks `is_stderr`, and pays for no pickle.
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
    """Whether what this process prints ends up in `path` anyway."""
    with suppress(OSError, ValueError, AttributeError):
        return os.path.samestat(os.fstat(sys.stderr.fileno()), path.stat())
    return False
