"""LogHandler: writes log records as lines to stderr and logs/crabtalkd.log, from one thread.

Modules log with `logging.getLogger(__name__)`, and add values for programs to read with
`extra={"fields": {"run_id": 7}}`, or shorter with `extra_fields`. Logging never blocks the caller.
`logging.handlers` cannot promise that: it reports a full queue on the stalled stderr, and waits
without limit for a stuck listener. It also imports pickle.
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

# Lines that may wait for the thread. More are dropped and counted.
MAX_QUEUED_LINES = 1024
# Characters of a text in a written line, and in a queued one. Masking comes before the cut: a
# secret at the end of the written text must still be whole to be recognised.
MAX_LOGGED_CHARS = 16 * 1024
MAX_QUEUED_CHARS = 2 * MAX_LOGGED_CHARS
CLOSE_TIMEOUT_SECONDS = 1.0

LogValue: TypeAlias = str | int | float | None
LogLine: TypeAlias = dict[str, LogValue]
ErrorInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | None
)


def extra_fields(**values: object) -> dict[str, dict[str, object]]:
    """For `extra=`: `log.info("run done", extra=extra_fields(run_id=7))`."""
    return {"fields": values}


def start_logging(
    *,
    directory: Path | None,
    form: Literal["text", "json"],
    level: int = logging.INFO,
    stderr: TextIO | None,
) -> "LogHandler":
    """Handle all logging until closed: our records from `level` on, libraries' from WARNING on.

    `directory` is the home's `logs`; it is created if needed, but the home is not.
    """
    file = LogFile(directory / LOG_FILE_NAME) if directory is not None else None
    stream = LogStream(stderr) if stderr is not None else None
    return LogHandler(file, stream, format_json if form == "json" else format_text, level)


class LogHandler(logging.Handler):
    """Handles all records. Closing restores the previous levels and handlers."""

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
        """Mask these from now on, except those below six characters, which could be plain words."""
        long_secrets = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        self._secrets |= long_secrets | {repr(secret)[1:-1] for secret in long_secrets}

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() < MAX_QUEUED_LINES:
            with suppress(Exception):  # str() of a value may raise anything
                self._queue.put((convert_record(record), record.exc_info, self._dropped))
                self._dropped = 0
                return
        self._dropped += 1

    def close(self) -> None:
        """Write the queued lines, but wait at most a second."""
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
            # In this thread, because it reads source files.
            line["exception"] = "".join(traceback.format_exception(*error)).rstrip()[
                :MAX_QUEUED_CHARS
            ]
        line = {escape_surrogates(key): self._mask_value(key, value) for key, value in line.items()}
        for sink in (self._file, self._stderr):  # the file first: stderr may wait for a reader
            if sink is not None:
                sink.lost_lines += dropped
                self._send(sink, line)

    def _send(self, sink: LogFile | LogStream, line: LogLine) -> None:
        data = self._form({**line, "dropped": sink.lost_lines} if sink.lost_lines else line)
        try:
            sink.write(data)
        except Exception as error:  # for example, a stream in memory may be closed
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
    """Escape lone surrogates, which file names can contain."""
    return text.encode(errors="backslashreplace").decode()


def convert_record(record: logging.LogRecord) -> LogLine:
    """Convert a record for the queue: values that cannot change later, and of limited size."""
    try:
        message = record.getMessage()
    except (TypeError, ValueError, KeyError):
        message = f"{record.msg} {record.args!r}"  # better than no message
    line = make_line(record.created, record.levelname, record.name, message)
    fields = getattr(record, "fields", None)
    for key, value in fields.items() if isinstance(fields, Mapping) else ():
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
    import msgspec.json  # late: not needed for text

    data = msgspec.json.encode(line)
    if not data.isascii() or 127 in data:
        # Escapes mean the same to a JSON parser. Outside strings there is only ASCII.
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
