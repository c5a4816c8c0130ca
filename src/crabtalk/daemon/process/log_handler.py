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

from crabtalk.masking import MASK, SHORTEST_SECRET, is_secret_name, mask_secrets
from crabtalk.service.log import CONTROL_ESCAPES, build_json_escapes

from .log_sinks import LOG_FILE_NAME, LogFile, LogStream

# Lines that wait for the thread. More are dropped, and counted.
MAX_QUEUED_LINES = 1024
# Characters of a text in a line, and of one that waits. It is cut after the masking: a secret at
# the end of what is shown must still be whole when it is looked for.
MAX_LOGGED_CHARS = 16 * 1024
MAX_QUEUED_CHARS = 2 * MAX_LOGGED_CHARS
CLOSE_TIMEOUT_SECONDS = 1.0

LogValue: TypeAlias = str | int | float | None
LogLine: TypeAlias = dict[str, LogValue]
ErrorInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | None
)


def extra_fields(**values: object) -> dict[str, dict[str, object]]:
    """For `extra=`: `log.info("run done", extra=fields(run_id=7))`."""
    return {"fields": values}


def start_logging(
    *,
    directory: Path | None,
    form: Literal["text", "json"],
    level: int = logging.INFO,
    stderr: TextIO | None,
) -> "LogHandler":
    """Takes over logging until closed: ours from `level` on, that of libraries from warnings on.

    `directory` is the home's `logs`; it is made if need be, the home is not.
    """
    file = LogFile(directory / LOG_FILE_NAME) if directory is not None else None
    stream = LogStream(stderr) if stderr is not None else None
    return LogHandler(file, stream, format_json if form == "json" else format_text, level)


class LogHandler(logging.Handler):
    """Handles all records. Closed, it has put logging back to where it was."""

    def __init__(
        self,
        file: LogFile | None,
        stderr: LogStream | None,
        form: Callable[[LogLine], bytes],
        level: int,
    ) -> None:
        super().__init__()
        self._file = file
        self._stderr = stderr
        self._form = form
        self._secrets = frozenset[str]()
        self._has_reported_problem = False
        self._dropped = 0
        # Bounded by `emit`. A bounded queue would deadlock when a finalizer logs during a put.
        self._queue = queue.SimpleQueue[tuple[LogLine, ErrorInfo, int] | None]()
        ours, root = logging.getLogger("crabtalk"), logging.getLogger()
        self._levels = [(ours, ours.level), (root, root.level)]
        ours.setLevel(level)
        root.setLevel(max(level, logging.WARNING))
        root.addHandler(self)
        # A daemon thread: at the end of the process it may be stuck in a write.
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def __enter__(self) -> "LogHandler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """From now on they are masked; those below six characters would mask plain words."""
        known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        self._secrets |= known | {repr(secret)[1:-1] for secret in known}

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() < MAX_QUEUED_LINES:
            with suppress(Exception):  # whatever it takes to make a text of a value
                self._queue.put((convert_record(record), record.exc_info, self._dropped))
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
            self._queue.put((make_own_line("WARNING", "the log ends"), None, self._dropped))
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_SECONDS)
        super().close()

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self._write(*event)
            except Exception as error:  # one line must not end the log
                self._write(
                    make_own_line("ERROR", f"a line could not be written: {error!r}"), None, 0
                )
        if self._file is not None:
            self._file.close()

    def _write(self, line: LogLine, error: ErrorInfo, dropped: int) -> None:
        if error is not None and error[0] is not None:
            # Here, because it reads source files.
            line["exception"] = "".join(traceback.format_exception(*error)).rstrip()[
                :MAX_QUEUED_CHARS
            ]
        line = {escape_surrogates(key): self._mask_value(key, value) for key, value in line.items()}
        for sink in (self._file, self._stderr):  # the file is not to wait for a reader
            if sink is not None:
                sink.lost_lines += dropped
                self._send(sink, line)

    def _send(self, sink: LogFile | LogStream, line: LogLine) -> None:
        data = self._form({**line, "dropped": sink.lost_lines} if sink.lost_lines else line)
        try:
            sink.write(data)
        except Exception as error:  # a stream in memory may be closed, or anything
            sink.lost_lines += 1
            if sink is self._file:
                reason = getattr(error, "strerror", None) or error
                self._report_problem(f"cannot write to {sink.path}: {reason}")
        else:
            sink.lost_lines = 0
            if sink is self._file:
                self._has_reported_problem = False

    def _report_problem(self, problem: str) -> None:
        if self._stderr is not None and not self._has_reported_problem:
            self._has_reported_problem = True
            self._send(
                self._stderr, make_own_line("WARNING", f"{problem}; the log goes on without it")
            )

    def _mask_value(self, key: str, value: LogValue) -> LogValue:
        if is_secret_name(key):
            return MASK
        if not isinstance(value, str) or key in ("ts", "level", "logger"):
            return value
        text = mask_secrets(value, self._secrets)
        if len(text) > MAX_LOGGED_CHARS:
            text = f"{text[:MAX_LOGGED_CHARS]}… (cut)"
        return escape_surrogates(text)


def escape_surrogates(text: str) -> str:
    """Without lone surrogates, such as names of files have."""
    return text.encode(errors="backslashreplace").decode()


def convert_record(record: logging.LogRecord) -> LogLine:
    """The record as it waits: nothing in it changes, or is larger than it need be."""
    try:
        message = record.getMessage()
    except (TypeError, ValueError, KeyError):
        message = f"{record.msg} {record.args!r}"  # better than no message
    line = make_line(record.created, record.levelname, record.name, message)
    given = getattr(record, "fields", None)
    for key, value in given.items() if isinstance(given, Mapping) else ():
        plain = (
            value
            if value is None or isinstance(value, int | float)
            else str(value)[:MAX_QUEUED_CHARS]
        )
        line[f"{key}_" if key in line else str(key)] = plain
    if record.stack_info:
        line["stack"] = record.stack_info[:MAX_QUEUED_CHARS]
    return line


def make_own_line(level: str, message: str) -> LogLine:
    return make_line(time.time(), level, __name__, message)


def make_line(created: float, level: str, logger: str, message: str) -> LogLine:
    seconds, milliseconds = divmod(round(created * 1000), 1000)
    ts = time.strftime(f"%Y-%m-%dT%H:%M:%S.{milliseconds:03}Z", time.gmtime(seconds))
    return {"ts": ts, "level": level, "logger": logger, "message": message[:MAX_QUEUED_CHARS]}


def format_json(line: LogLine) -> bytes:
    import msgspec.json  # a daemon that logs text does not pay for it

    data = msgspec.json.encode(line)
    if not data.isascii() or 127 in data:
        # Escapes mean the same to whoever parses it. Outside of strings there is only ASCII.
        data = data.decode().translate(build_json_escapes()).encode()
    return data + b"\n"


def format_text(line: LogLine) -> bytes:
    rest = dict(line)
    ts, level, logger, message = (rest.pop(key) for key in ("ts", "level", "logger", "message"))
    words = [f"{ts} {level:<5} {str(logger).removeprefix('crabtalk.')}: {message}"]
    words += [f"{key}={quote_value(str(value))}" for key, value in rest.items()]
    return " ".join(words).translate(CONTROL_ESCAPES).encode() + b"\n"


def quote_value(text: str) -> str:
    if re.fullmatch(r'[^\s"=\\]+', text):
        return text
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'
