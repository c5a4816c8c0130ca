"""Logs: every record as one line, on stderr and in logs/crabtalkd.log, written by one thread.

Any room logs with `logging.getLogger(__name__)`, and adds values that a program may want to read
with `extra={"fields": {"run_id": 7}}`; `fields` writes that shorter. Nothing here blocks who logs,
which `logging.handlers` cannot promise: a full queue complains on the stderr that is stalled, and a
listener that is stuck is waited for without end. It also loads pickle.
"""

import logging
import queue
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, TextIO, TypeAlias

from crabtalk.component.log import CONTROLS, json_controls
from crabtalk.masking import MASK, SHORTEST_SECRET, is_secret, mask

from .log_sinks import FILE, LogFile, Stream

# Lines that wait for the thread. More are dropped, and counted.
WAITING = 1024
# Characters of a text in a line, and of one that waits. It is cut after the masking: a secret at
# the end of what is shown must still be whole when it is looked for.
SHOWN = 16 * 1024
KEPT = 2 * SHOWN
CLOSING = 1.0

Value: TypeAlias = str | int | float | None
Line: TypeAlias = dict[str, Value]
ErrorInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | None
)


def fields(**values: object) -> dict[str, dict[str, object]]:
    """For `extra=`: `log.info("run done", extra=fields(run_id=7))`."""
    return {"fields": values}


def start_logs(
    *,
    directory: Path | None,
    form: Literal["text", "json"],
    level: int = logging.INFO,
    stderr: TextIO | None,
) -> "Logs":
    """Takes over logging until closed: ours from `level` on, that of libraries from warnings on.

    `directory` is the home's `logs`; it is made if need be, the home is not.
    """
    file = LogFile(directory / FILE) if directory is not None else None
    stream = Stream(stderr) if stderr is not None else None
    return Logs(file, stream, as_json if form == "json" else as_text, level)


class Logs(logging.Handler):
    """Handles all records. Closed, it has put logging back to where it was."""

    def __init__(
        self,
        file: LogFile | None,
        stderr: Stream | None,
        form: Callable[[Line], bytes],
        level: int,
    ) -> None:
        super().__init__()
        self._file = file
        self._stderr = stderr
        self._form = form
        self._secrets = frozenset[str]()
        self._has_complained = False
        self._dropped = 0
        # Bounded by `emit`. A bounded queue would deadlock when a finalizer logs during a put.
        self._waiting = queue.SimpleQueue[tuple[Line, ErrorInfo, int] | None]()
        ours, root = logging.getLogger("crabtalk"), logging.getLogger()
        self._levels = [(ours, ours.level), (root, root.level)]
        ours.setLevel(level)
        root.setLevel(max(level, logging.WARNING))
        root.addHandler(self)
        # A daemon thread: at the end of the process it may be stuck in a write.
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Logs":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """From now on they are masked; those below six characters would mask plain words."""
        known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        self._secrets |= known | {repr(secret)[1:-1] for secret in known}

    def emit(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() < WAITING:
            with suppress(Exception):  # whatever it takes to make a text of a value
                self._waiting.put((line_of(record), record.exc_info, self._dropped))
                self._dropped = 0
                return
        self._dropped += 1

    def close(self) -> None:
        """Writes what waits, but takes no more than a second."""
        root = logging.getLogger()
        if self not in root.handlers:
            return
        root.removeHandler(self)
        for logger, level in self._levels:
            logger.setLevel(level)
        if self._dropped:
            self._waiting.put((own_line("WARNING", "the log ends"), None, self._dropped))
        self._waiting.put(None)
        self._thread.join(CLOSING)
        super().close()

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._write(*event)
            except Exception as error:  # one line must not end the log
                self._write(own_line("ERROR", f"a line could not be written: {error!r}"), None, 0)
        if self._file is not None:
            self._file.close()

    def _write(self, line: Line, error: ErrorInfo, dropped: int) -> None:
        if error is not None and error[0] is not None:
            # Here, because it reads source files.
            line["exception"] = "".join(traceback.format_exception(*error)).rstrip()[:KEPT]
        line = {as_utf8(key): self._masked(key, value) for key, value in line.items()}
        for sink in (self._file, self._stderr):  # the file is not to wait for a reader
            if sink is not None:
                sink.lost += dropped
                self._send(sink, line)

    def _send(self, sink: LogFile | Stream, line: Line) -> None:
        data = self._form({**line, "dropped": sink.lost} if sink.lost else line)
        try:
            sink.write(data)
        except Exception as error:  # a stream in memory may be closed, or anything
            sink.lost += 1
            if sink is self._file:
                reason = getattr(error, "strerror", None) or error
                self._complain(f"cannot write to {sink.path}: {reason}")
        else:
            sink.lost = 0
            if sink is self._file:
                self._has_complained = False

    def _complain(self, problem: str) -> None:
        if self._stderr is not None and not self._has_complained:
            self._has_complained = True
            self._send(self._stderr, own_line("WARNING", f"{problem}; the log goes on without it"))

    def _masked(self, key: str, value: Value) -> Value:
        if is_secret(key):
            return MASK
        if not isinstance(value, str) or key in ("ts", "level", "logger"):
            return value
        text = mask(value, self._secrets)
        if len(text) > SHOWN:
            text = f"{text[:SHOWN]}… (cut)"
        return as_utf8(text)


def as_utf8(text: str) -> str:
    """Without lone surrogates, such as names of files have."""
    return text.encode(errors="backslashreplace").decode()


def line_of(record: logging.LogRecord) -> Line:
    """The record as it waits: nothing in it changes, or is larger than it need be."""
    try:
        message = record.getMessage()
    except (TypeError, ValueError, KeyError):
        message = f"{record.msg} {record.args!r}"  # better than no message
    line = new_line(record.created, record.levelname, record.name, message)
    given = getattr(record, "fields", None)
    for key, value in given.items() if isinstance(given, Mapping) else ():
        plain = value if value is None or isinstance(value, int | float) else str(value)[:KEPT]
        line[f"{key}_" if key in line else str(key)] = plain
    if record.stack_info:
        line["stack"] = record.stack_info[:KEPT]
    return line


def own_line(level: str, message: str) -> Line:
    return new_line(time.time(), level, __name__, message)


def new_line(created: float, level: str, logger: str, message: str) -> Line:
    seconds, milliseconds = divmod(round(created * 1000), 1000)
    ts = time.strftime(f"%Y-%m-%dT%H:%M:%S.{milliseconds:03}Z", time.gmtime(seconds))
    return {"ts": ts, "level": level, "logger": logger, "message": message[:KEPT]}


def as_json(line: Line) -> bytes:
    import msgspec.json  # a daemon that logs text does not pay for it

    data = msgspec.json.encode(line)
    if not data.isascii() or 127 in data:
        # Escapes mean the same to whoever parses it. Outside of strings there is only ASCII.
        data = data.decode().translate(json_controls()).encode()
    return data + b"\n"


def as_text(line: Line) -> bytes:
    rest = dict(line)
    ts, level, logger, message = (rest.pop(key) for key in ("ts", "level", "logger", "message"))
    words = [f"{ts} {level:<5} {str(logger).removeprefix('crabtalk.')}: {message}"]
    words += [f"{key}={quoted(str(value))}" for key, value in rest.items()]
    return " ".join(words).translate(CONTROLS).encode() + b"\n"


def quoted(text: str) -> str:
    if re.fullmatch(r'[^\s"=\\]+', text):
        return text
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'
