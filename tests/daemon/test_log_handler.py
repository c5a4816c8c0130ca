"""LogHandler: one line per record, without secrets, and logging never waits for a reader."""

import fcntl
import io
import json
import logging
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.daemon.process.log_handler import (
    MAX_LOGGED_CHARS,
    MAX_QUEUED_LINES,
    extra_fields,
    start_logging,
)
from crabtalk.daemon.process.log_sinks import MAX_FILE_SIZE, LogStream
from crabtalk.masking import MASK, mask_secrets

log = logging.getLogger("crabtalk.runtime")
Form = Literal["text", "json"]
FORMS: list[Form] = ["text", "json"]


@contextmanager
def capture_lines(form: Form, *secrets: str) -> Iterator[list[str]]:
    """The lines, after the logs are closed. Other handlers are removed: pytest's fails on some."""
    stderr = io.StringIO()
    lines: list[str] = []
    root = logging.getLogger()
    others, root.handlers = root.handlers, []
    try:
        with start_logging(directory=None, form=form, stderr=stderr) as logs:
            logs.add_secrets(secrets)
            yield lines
    finally:
        root.handlers = others
    text = stderr.getvalue()
    assert text == "" or text.endswith("\n")
    lines.extend(text.split("\n")[:-1])


def make_record(created: float) -> logging.LogRecord:
    record = {"name": log.name, "levelno": logging.INFO, "levelname": "INFO", "msg": "run done"}
    return logging.makeLogRecord(
        {**record, "created": created, **extra_fields(run_id=7, agent="crab")}
    )


def test_a_text_line_has_time_level_logger_message_and_fields() -> None:
    with capture_lines("text") as lines:
        log.handle(make_record(1794736800.123))
        log.warning(
            "odd", extra=extra_fields(path="/a b", empty="", quote='say "hi"', none=None, ok=True)
        )
        logging.getLogger("aiohttp.server").error("%d bytes", 12)
    assert lines[0] == "2026-11-15T10:00:00.123Z INFO  runtime: run done run_id=7 agent=crab"
    assert lines[1].endswith(
        r' WARNING runtime: odd path="/a b" empty="" quote="say \"hi\"" none=None ok=True'
    )
    assert lines[2].endswith(" ERROR aiohttp.server: 12 bytes")


def test_a_json_line_is_one_object() -> None:
    with capture_lines("json") as lines:
        log.handle(make_record(1794736799.9999))
        log.info("odd", extra={"fields": {"rate": 0.5, "path": Path("/a b"), "message": 3}})
    assert json.loads(lines[0]) == {
        "ts": "2026-11-15T10:00:00.000Z",
        "level": "INFO",
        "logger": "crabtalk.runtime",
        "message": "run done",
        "run_id": 7,
        "agent": "crab",
    }
    odd = json.loads(lines[1])
    assert (odd["message"], odd["rate"], odd["path"], odd["message_"]) == ("odd", 0.5, "/a b", 3)


@pytest.mark.req("logs.one_line")
@pytest.mark.parametrize("form", FORMS)
@given(text=st.text(st.characters()), name=st.text(st.characters()))
def test_any_record_is_one_line(form: Form, text: str, name: str) -> None:
    with capture_lines(form) as lines:
        log.info("%s", text, extra={"fields": {name: text, "value": text}})
        log.info(text)
    assert len(lines) == 2
    assert all(len(line.splitlines()) == 1 for line in lines if form == "text")
    if form == "json":
        clean = mask_secrets(text, ()).encode(errors="backslashreplace").decode()
        assert [json.loads(line)["message"] for line in lines] == [clean, clean]


@pytest.mark.parametrize("form", FORMS)
def test_a_traceback_is_in_the_line(form: Form) -> None:
    with capture_lines(form) as lines:
        try:
            int("two\nlines")
        except ValueError:
            log.exception("failed", extra=extra_fields(run_id=7), stack_info=True)
        log.error("no error at all", exc_info=True)
    failed, without = lines
    if form == "json":
        line = json.loads(failed)
        text, stack = line["exception"], line["stack"]
    else:
        assert re.search(r'runtime: failed run_id=7 stack="Stack .*" exception="Trace', failed)
        text = stack = failed.replace(r"\n", "\n")
    assert "Traceback (most recent call last):\n" in text
    assert "ValueError: invalid literal for int() with base 10: 'two" in text
    assert "test_a_traceback_is_in_the_line" in stack
    assert "exception" not in without


@pytest.mark.parametrize("form", FORMS)
def test_invalid_logging_calls_are_logged_as_far_as_possible(form: Form) -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError

    with capture_lines(form) as lines:
        log.info("%d of %d", "one")
        log.info("mute", extra=extra_fields(value=Mute()))
        log.info("huge", extra=extra_fields(value=1 << 100_000))
        log.info("not a mapping", extra={"fields": 3})
    assert "%d of %d ('one',)" in lines[0]
    assert "a line could not be written: " in lines[1] or "huge" in lines[1]
    assert len(lines) == 3
    assert "dropped" in lines[1] or "dropped" in lines[2]


def test_a_long_text_is_cut_after_masking() -> None:
    with capture_lines("json", "hunter22") as lines:
        log.info("x" * (MAX_LOGGED_CHARS - 4) + "hunter22" + "y" * 10_000_000)
    assert json.loads(lines[0])["message"] == "x" * (MAX_LOGGED_CHARS - 4) + MASK[:4] + "… (cut)"


SECRET = "s3cr3t-Va/lue+0=="
SHAPES = [
    "Bearer {}",
    "bearer  {}",
    "sk-{}",
    "api_key={}",
    "OPENAI_API_KEY={} and more",
    "api-key: {}, model: x",
    '{{"api_key": "{}", "model": "x"}}',
    '{{"api_key":"a\\"{}"}}',
    "{{'apikey': '{}'}}",
    r"{{\"api_key\": \"{}\"}}",
    "Authorization: {}",
    "Authorization: Basic {}",
    "{{'Authorization': 'Basic {}'}}",
    "(b'authorization', b'Digest {}')",
    "x-api-key: {}",
    "(b'x-api-key', b'{}')",
    "aws_secret_access_key {}",
    "aws_secret_access_key = {}",
    "https://me:{}@example.com/path",
    "postgresql://{}@example.com",
    "https://example.com/v1?key={}&alt=sse",
    "https://example.com/v1?alt=sse&key={}",
    "password={}",
]


@pytest.mark.req("logs.one_line")
@pytest.mark.parametrize("shape", SHAPES)
def test_text_that_looks_like_a_secret_is_masked(shape: str) -> None:
    secret = SECRET.replace("/", "-") if "://" in shape or "sk-" in shape else SECRET
    text = shape.format(secret)
    assert secret in text
    masked = mask_secrets(f"before {text}\nafter", ())
    assert "s3cr3t" not in masked
    assert "lue+0" not in masked
    assert MASK in masked
    assert masked.startswith("before ")
    assert masked.endswith("\nafter") or "\\" in shape
    assert mask_secrets(masked, ()) == masked


@pytest.mark.parametrize(
    "text",
    [
        "first_token=0.31 input_tokens=12 max_tokens: 16",
        "task-123456789 of risk-management-team",
        "the api key is missing; set OPENAI_API_KEY",
        "https://example.com/@scope/a@b?monkey=1",
        "unexpected token: }",
        "me@example.com wrote",
    ],
)
def test_other_text_is_not_masked(text: str) -> None:
    assert mask_secrets(text, ()) == text


def test_masking_keeps_the_rest_of_a_text() -> None:
    assert mask_secrets("GET https://me:pw@x.org/a?key=K&b=1 Bearer T, done", ()) == (
        f"GET https://{MASK}@x.org/a?key={MASK}&b=1 Bearer {MASK}, done"
    )
    assert (
        mask_secrets("{'api_key': 'K', 'model': 'm'}", ())
        == f"{{'api_key': '{MASK}', 'model': 'm'}}"
    )


# Starts with a character that no line has otherwise, and contains no mask.
KNOWN = st.text(min_size=5).filter(lambda text: "*" not in text).map("§{}".format)


@pytest.mark.req("logs.one_line")
@pytest.mark.parametrize("form", FORMS)
@given(secrets=st.lists(KNOWN, min_size=1), around=st.text())
def test_a_known_secret_is_in_no_line(form: Form, secrets: list[str], around: str) -> None:
    with capture_lines(form, *secrets) as lines:
        for secret in secrets:
            log.info("%s", around + secret + around)
            log.info("%r", secret, extra=extra_fields(value=secret))
            log.info("failed", exc_info=ValueError(secret))
    assert len(lines) == 3 * len(secrets)
    for line in lines:
        shown = "\0".join(map(str, json.loads(line).values())) if form == "json" else line
        assert not [secret for secret in secrets if secret in shown]


def test_a_known_secret_is_masked_in_its_repr_too() -> None:
    with capture_lines("json", "its\nlines 'and' quotes") as lines:
        log.info("%r", ["its\nlines 'and' quotes"])
    assert json.loads(lines[0])["message"] == f'["{MASK}"]'


@pytest.mark.parametrize("form", FORMS)
def test_a_field_with_the_name_of_a_secret_is_masked(form: Form) -> None:
    with capture_lines(form) as lines:
        log.info("x", extra=extra_fields(api_key="abc", Authorization="Basic abc", input_tokens=3))
    assert "abc" not in lines[0]
    assert lines[0].count(MASK) == 2
    assert "3" in lines[0].split("input_tokens")[1]


def test_a_short_secret_masks_nothing() -> None:
    with capture_lines("text", "run", "crab") as lines:
        log.info("a run of crab")
    assert lines[0].endswith("a run of crab")


@contextmanager
def open_pipe() -> Iterator[tuple[int, TextIO]]:
    """The read end of the smallest possible pipe, and a stream for its write end."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(writing, "w") as stream:
        try:
            yield reading, stream
        finally:
            os.close(reading)


def fill_pipe(stream: TextIO) -> int:
    """Fill a pipe. Returns the number of bytes written."""
    os.set_blocking(stream.fileno(), False)
    written = 0
    try:
        while True:
            written += os.write(stream.fileno(), b"." * 4096)
    except BlockingIOError:
        os.set_blocking(stream.fileno(), True)
        return written


def read_line(reading: int) -> str:
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(reading, 1)
    return line.decode()


@pytest.mark.req("logs.never_block")
def test_a_stalled_stderr_blocks_neither_the_caller_nor_the_file(home: Path) -> None:
    home.mkdir()
    with open_pipe() as (reading, stderr):
        filled = fill_pipe(stderr)
        with start_logging(directory=home / "logs", form="text", stderr=stderr):
            for number in range(100):
                log.info("number %d", number)
        assert os.read(reading, 2 * filled) == b"." * filled
    numbers = [line.split()[-1] for line in read_log_file(home)]
    assert numbers == list(map(str, range(100)))


class SignalError(Exception):
    """The log thread calls its __str__, after it has written all earlier lines."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()

    def __str__(self) -> str:
        if threading.current_thread().name == "logs":  # not by pytest's handler
            self.reached.set()
        return ""


@pytest.mark.req("logs.never_block")
def test_a_reader_that_reads_again_learns_how_many_lines_it_missed() -> None:
    signal = SignalError()
    with open_pipe() as (reading, stderr):
        left = fill_pipe(stderr)
        with start_logging(directory=None, form="json", stderr=stderr):
            log.info("missed")
            log.info("perhaps missed", exc_info=signal)
            signal.reached.wait()
            while left:
                left -= len(os.read(reading, left))
            log.info("back")
            lines = [json.loads(read_line(reading))]
            while lines[-1]["message"] != "back":
                lines.append(json.loads(read_line(reading)))
    missed = lines[0]["dropped"]
    assert missed + len(lines) == 3
    assert "dropped" not in lines[-1] or len(lines) == 1


def test_a_partly_written_line_does_not_spoil_the_next() -> None:
    with open_pipe() as (reading, stderr):
        stream = LogStream(stderr)
        with pytest.raises(BlockingIOError):
            stream.write(b"x" * 10_000 + b"\n")
        assert os.read(reading, 10_000) == b"x" * 4096
        stream.write(b"next\n")
        assert os.read(reading, 100) == b"\nnext\n"
        stream.write(b"and on\n")
        assert os.read(reading, 100) == b"and on\n"


def test_a_closed_stderr_does_not_stop_the_log_file(home: Path) -> None:
    home.mkdir()
    reading, writing = os.pipe()
    os.close(reading)
    with (
        os.fdopen(writing, "w") as stderr,
        start_logging(directory=home / "logs", form="text", stderr=stderr),
    ):
        log.info("one")
        log.info("two")
    assert [line.split()[-1] for line in read_log_file(home)] == ["one", "two"]


class StalledStream(io.StringIO):
    """Blocks writes until `go` is set."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go = threading.Event()
        self.done = threading.Event()
        self._last_text = last

    def write(self, text: str) -> int:
        self.reached.set()
        self.go.wait()
        written = super().write(text)
        if self._last_text in text:
            self.done.set()
        return written


def test_lines_beyond_the_queue_limit_are_dropped_and_counted_in_the_next() -> None:
    stderr = StalledStream(f"number {MAX_QUEUED_LINES}")
    with start_logging(directory=None, form="json", stderr=stderr):
        log.info("number 0")
        stderr.reached.wait()
        for number in range(1, MAX_QUEUED_LINES + 6):
            log.info("number %d", number)
        stderr.go.set()
        stderr.done.wait()
        log.info("next")
        log.info("and on")
    *lines, next_line, last = [json.loads(line) for line in stderr.getvalue().splitlines()]
    assert [line["message"] for line in lines] == [
        f"number {n}" for n in range(MAX_QUEUED_LINES + 1)
    ]
    assert not [line for line in [*lines, last] if "dropped" in line]
    assert (next_line["message"], next_line["dropped"]) == ("next", 5)


def test_lines_dropped_last_are_counted_when_the_log_ends() -> None:
    stderr = StalledStream("the log ends")
    with start_logging(directory=None, form="text", stderr=stderr):
        log.info("the first")
        stderr.reached.wait()
        for _ in range(MAX_QUEUED_LINES + 3):
            log.info("waiting")
        stderr.go.set()
    stderr.done.wait()
    assert stderr.getvalue().endswith("the log ends dropped=3\n")


def test_closing_does_not_wait_for_a_blocked_write() -> None:
    stderr = StalledStream("stuck")
    with start_logging(directory=None, form="text", stderr=stderr):
        log.info("stuck")
        stderr.reached.wait()
    assert not stderr.done.is_set()
    stderr.go.set()
    stderr.done.wait()


def test_a_process_can_exit_while_its_stderr_is_not_read() -> None:
    script = """
import logging, sys
from crabtalk.daemon.process.log_handler import start_logging
logs = start_logging(directory=None, form="text", stderr=sys.stderr)
for number in range(5000):
    logging.getLogger("crabtalk").info("x" * 100)
print("done", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"done\n"
        assert process.wait(20) == 0


def test_several_threads_can_log() -> None:
    def log_numbers(name: int) -> None:
        for number in range(100):
            log.info("%d %d", name, number)

    with capture_lines("text") as lines:
        threads = [threading.Thread(target=log_numbers, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in range(4):
        own = [line.split()[-1] for line in lines if line.split()[-2] == str(name)]
        assert own == list(map(str, range(100)))


def read_log_file(home: Path) -> list[str]:
    return (home / "logs" / "crabtalkd.log").read_text().splitlines()


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.req("home.private")
def test_the_file_is_private_whatever_the_umask_and_the_old_mode(home: Path) -> None:
    logs = home / "logs"
    (home / "open").mkdir(parents=True)
    (home / "open").chmod(0o777)
    (home / "open" / "crabtalkd.log").touch()
    (home / "open" / "crabtalkd.log").chmod(0o666)
    before = os.umask(0)
    try:
        for directory in (logs, home / "open"):
            with start_logging(directory=directory, form="text", stderr=None):
                log.info("x")
            assert get_mode(directory) == 0o700
            assert get_mode(directory / "crabtalkd.log") == 0o600
    finally:
        os.umask(before)


def test_a_full_file_is_rotated_and_three_old_ones_are_kept(home: Path) -> None:
    logs = home / "logs"
    logs.mkdir(parents=True)
    for number in range(6):
        with start_logging(directory=logs, form="text", stderr=None):
            log.info("number %d", number)
        os.truncate(logs / "crabtalkd.log", MAX_FILE_SIZE - 10)
    begins = {path.name: path.read_text().splitlines()[0] for path in logs.iterdir()}
    assert {name: int(begin.split()[-1]) for name, begin in begins.items()} == {
        "crabtalkd.log": 5,
        "crabtalkd.log.1": 4,
        "crabtalkd.log.2": 3,
        "crabtalkd.log.3": 2,
    }
    assert {get_mode(path) for path in logs.iterdir()} == {0o600}


def test_the_next_start_adds_to_the_file(home: Path) -> None:
    home.mkdir()
    for word in ("one", "two"):
        with start_logging(directory=home / "logs", form="text", stderr=None):
            log.info(word)
    assert [line.split()[-1] for line in read_log_file(home)] == ["one", "two"]


@pytest.mark.parametrize("form", FORMS)
def test_an_unwritable_directory_is_reported_once_and_used_when_it_becomes_writable(
    form: Form, home: Path
) -> None:
    home.mkdir()
    (home / "logs").write_text("in the way")
    stderr, signal = io.StringIO(), SignalError()
    with start_logging(directory=home / "logs", form=form, stderr=stderr):
        log.info("one")
        log.info("two", exc_info=signal)
        signal.reached.wait()
        (home / "logs").unlink()
        log.info("three")
    complaint, *lines = stderr.getvalue().splitlines()
    assert f"cannot write to {home / 'logs' / 'crabtalkd.log'}: File exists; the " in complaint
    assert len(lines) == 3
    first = read_log_file(home)[0]
    assert re.search(r'dropped(=|":)[12]\b', first)


def test_an_unwritable_directory_is_reported_again_after_it_was_writable(home: Path) -> None:
    home.mkdir()
    stderr, signal = io.StringIO(), SignalError()
    with start_logging(directory=home / "logs", form="text", stderr=stderr):
        (home / "logs").write_text("in the way")
        log.info("one")
        log.info("two", exc_info=signal)
        signal.reached.wait()
        (home / "logs").unlink()
        signal.reached.clear()
        log.info("three")
        log.info("four", exc_info=signal)
        signal.reached.wait()
        (home / "logs").rename(home / "aside")
        (home / "logs").write_text("in the way")
        (home / "aside" / "crabtalkd.log").unlink()
        log.info("five")
    assert stderr.getvalue().count("cannot write to ") == 2


def test_a_removed_file_is_created_again(home: Path) -> None:
    home.mkdir()
    signal = SignalError()
    with start_logging(directory=home / "logs", form="text", stderr=None):
        log.info("one")
        log.info("two")
        log.info("three", exc_info=signal)
        signal.reached.wait()
        (home / "logs" / "crabtalkd.log").unlink()
        log.info("four")
    assert read_log_file(home)[-1].endswith("four")


def test_links_and_fifos_are_not_used_as_log_file(home: Path, tmp_path: Path) -> None:
    logs = home / "logs"
    logs.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (logs / "crabtalkd.log").symlink_to(precious)
    with start_logging(directory=logs, form="text", stderr=None):
        log.info("x")
    assert precious.read_text() == "keep"
    (logs / "crabtalkd.log").unlink()
    os.mkfifo(logs / "crabtalkd.log")
    with start_logging(directory=logs, form="text", stderr=None):
        log.info("x")


def test_libraries_log_from_warnings_on_and_our_modules_from_the_level_on() -> None:
    stderr = io.StringIO()
    with start_logging(directory=None, form="text", level=logging.DEBUG, stderr=stderr):
        logging.getLogger("aiohttp").info("no")
        logging.getLogger("aiohttp").warning("yes")
        log.debug("yes")
    with start_logging(directory=None, form="text", stderr=stderr):
        log.debug("no")
    assert [line.split()[-1] for line in stderr.getvalue().splitlines()] == ["yes", "yes"]


def test_closing_restores_the_logging_configuration() -> None:
    root, ours = logging.getLogger(), logging.getLogger("crabtalk")

    def state() -> list[object]:
        return [root.level, ours.level, *root.handlers]

    before = state()
    stderr = io.StringIO()
    logs = start_logging(directory=None, form="text", stderr=stderr)
    assert state() != before
    logs.close()
    logs.close()
    assert state() == before
    log.warning("not handled")
    assert stderr.getvalue() == ""


# ── Invisible characters ────────────────────────────────────────────────────────────────────────

INVISIBLE = [
    *(*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0x200B, 0x2010), 0x61C, 0xFEFF),
    *(0xAD, 0x2060, 0xE0041),
]


@pytest.mark.req("logs.invisible")
@pytest.mark.parametrize("form", FORMS)
def test_invisible_characters_are_escaped(form: Form, tmp_path: Path) -> None:
    text = "".join(f"a{chr(code)}b" for code in INVISIBLE)
    stderr = io.StringIO()
    with start_logging(directory=tmp_path, form=form, stderr=stderr):
        log.warning("said %s", text, extra={"fields": {"who": text, f"key{text}": 1}})
        log.warning("line\u2028\x85\x7f end, and dünen 砂 stay")
    for written_text in ((tmp_path / "crabtalkd.log").read_text("utf-8"), stderr.getvalue()):
        assert not set(written_text) & {chr(code) for code in (*INVISIBLE, 0x2028, 0x85, 0x7F)}
        assert "\\u202e" in written_text
        assert "dünen 砂 stay" in written_text
        first, second = written_text.splitlines()
        if form == "json":
            record = json.loads(first)
            assert (record["message"], record["who"], record[f"key{text}"]) == (
                f"said {text}",
                text,
                1,
            )
            assert json.loads(second)["message"].startswith("line\u2028\x85\x7f end")
