"""The scribe: what it says is kept is in the file, and many share a flush."""

import asyncio
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crabtalk.storage import StorageError
from crabtalk.storage import log_writer as scribes
from crabtalk.storage.log_writer import LogWriter


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@contextmanager
def pause_writer(scribe: LogWriter, directory: Path) -> Iterator[None]:
    """Meanwhile the scribe writes nothing: it opens a pipe that nobody reads, and waits there."""
    directory.mkdir(mode=0o700, exist_ok=True)
    pipe = directory / "pipe.jsonl"
    os.mkfifo(pipe)
    # Refused in the end, and nobody minds: a pipe cannot be flushed, or has no reader any more.
    scribe.append("pipe", b"x\n").add_done_callback(asyncio.Future.exception)
    try:
        yield
    finally:
        os.close(os.open(pipe, os.O_RDONLY))


def read_content(directory: Path, name: str) -> bytes:
    return (directory / f"{name}.jsonl").read_bytes()


async def create_logs(scribe: LogWriter, *names: str) -> None:
    await asyncio.gather(*[scribe.append(name, b"0\n", create=True) for name in names])


async def test_lines_are_in_the_file_when_the_append_is_done(directory: Path) -> None:
    scribe = LogWriter(directory)
    await scribe.append("a", b"one\n", create=True)
    assert read_content(directory, "a") == b"one\n"
    await scribe.append("a", b"two\nthree\n")
    assert read_content(directory, "a") == b"one\ntwo\nthree\n"
    assert scribe.appends == scribe.flushes == 2
    await scribe.close()


async def test_files_and_their_directory_are_private(directory: Path) -> None:
    old = os.umask(0)
    try:
        scribe = LogWriter(directory)
        await scribe.append("a", b"one\n", create=True)
        await scribe.close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "a.jsonl").stat().st_mode) == 0o600


@pytest.mark.req("storage.group_commit")
async def test_appends_that_come_together_share_a_flush_and_keep_their_order(
    directory: Path,
) -> None:
    scribe = LogWriter(directory)
    names = [f"log-{n}" for n in range(50)]
    await create_logs(scribe, *names)
    before = scribe.flushes
    done: dict[str, list[int]] = {name: [] for name in names}

    def append(name: str, number: int) -> asyncio.Future[None]:
        def note(_: asyncio.Future[None]) -> None:
            if b"%d" % number in read_content(directory, name).splitlines():
                done[name].append(number)

        future = scribe.append(name, b"%d\n" % number)
        future.add_done_callback(note)
        return future

    with pause_writer(scribe, directory):
        waiting = [append(name, number) for number in range(1, 5) for name in names]
        await asyncio.sleep(0)
        assert not any(future.done() for future in waiting)
    await asyncio.gather(*waiting)
    for name in names:
        assert read_content(directory, name) == b"0\n1\n2\n3\n4\n"
        assert done[name] == [1, 2, 3, 4]
    # One of the file system on Linux, else one of each log: not one of each of 200 appends. The
    # first few may have gone along with the pipe.
    most = 1 if sys.platform == "linux" else len(names)
    assert scribe.flushes - before < most + scribes.MIN_FOR_SHARED_FLUSH
    await scribe.close()


def refuse_flush(descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("flush", [None, refuse_flush], ids=["not offered", "refused"])
async def test_where_one_flush_for_all_cannot_be_had_each_log_is_flushed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, flush: Callable[[int], None] | None
) -> None:
    monkeypatch.setattr(scribes, "file_system_flush", lambda: flush)
    scribe = LogWriter(directory)
    names = [f"log-{n}" for n in range(20)]
    await create_logs(scribe, *names)
    before = scribe.flushes
    with pause_writer(scribe, directory):
        waiting = [scribe.append(name, b"1\n") for name in names * 3]
    await asyncio.gather(*waiting)
    # The first few may have gone along with the pipe.
    assert len(names) <= scribe.flushes - before <= 2 * len(names)
    await scribe.close()


@pytest.mark.req("storage.group_commit")
async def test_an_append_is_done_only_after_its_flush(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of system calls is the promise, so this one test listens to them."""
    calls: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        status = os.fstat(descriptor)
        is_directory = stat.S_ISDIR(status.st_mode)
        calls.append("directory" if is_directory else f"log of {status.st_size} bytes")
        fsync(descriptor)

    async def append(data: bytes, *, create: bool) -> None:
        done = scribe.append("a", data, create=create)
        done.add_done_callback(lambda _: calls.append("done"))
        await done

    for name in {"fsync", "fdatasync"} & set(dir(os)):
        monkeypatch.setattr(os, name, noting)
    scribe = LogWriter(directory)
    await append(b"one\n", create=True)
    # That of the home, for the directory; that of the directory, for the log; the log.
    assert calls == ["directory", "directory", "log of 4 bytes", "done"]
    await append(b"two\n", create=False)
    assert calls[4:] == ["log of 8 bytes", "done"]
    await scribe.close()


async def test_what_a_flush_fails_to_keep_is_taken_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file system at hand refuses a flush on demand, so this one test plays a broken disk."""
    scribe = LogWriter(directory)
    await create_logs(scribe, "a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync" if hasattr(os, "fdatasync") else "fsync", refuse_flush)
        with pytest.raises(StorageError, match=r"log a: .*; nothing of it was kept"):
            await scribe.append("a", b"lost\n")
    assert read_content(directory, "a") == b"0\n"
    await scribe.append("a", b"1\n")
    assert read_content(directory, "a") == b"0\n1\n"
    await scribe.close()


async def test_without_flushes_nothing_is_flushed(directory: Path) -> None:
    scribe = LogWriter(directory, flush=False)
    await create_logs(scribe, "a", "b")
    await asyncio.gather(*[scribe.append("a", b"1\n") for _ in range(100)])
    assert read_content(directory, "a") == b"0\n" + b"1\n" * 100
    assert scribe.flushes == 0
    assert scribe.appends == 102
    await scribe.close()


async def test_closing_keeps_what_was_given_and_accepts_nothing_more(directory: Path) -> None:
    scribe = LogWriter(directory)
    await create_logs(scribe, "a")
    with pause_writer(scribe, directory):
        waiting = [scribe.append("a", b"%d\n" % number) for number in range(1, 10)]
        closing = asyncio.ensure_future(scribe.close())
        await asyncio.sleep(0)
        with pytest.raises(StorageError, match="storage is closed"):
            await scribe.append("a", b"late\n")
        assert not closing.done()
    await closing
    assert read_content(directory, "a") == b"".join(b"%d\n" % number for number in range(10))
    await asyncio.gather(*waiting)
    await scribe.close()


async def test_one_that_never_wrote_can_be_closed(directory: Path) -> None:
    scribe = LogWriter(directory)
    await scribe.close()
    with pytest.raises(StorageError, match="closed"):
        await scribe.append("a", b"x\n", create=True)
    assert not directory.exists()


async def test_a_log_that_is_gone_fails_its_own_appends_only(directory: Path) -> None:
    scribe = LogWriter(directory)
    await create_logs(scribe, "a", "b")
    (directory / "a.jsonl").unlink()
    with pause_writer(scribe, directory):
        gone = [scribe.append("a", b"1\n"), scribe.append("a", b"2\n")]
        fine = [scribe.append("b", b"1\n"), scribe.append("b", b"2\n")]
    await asyncio.gather(*fine)
    for done in gone:
        with pytest.raises(StorageError, match="the log a is gone; say it again to begin"):
            await done
    assert read_content(directory, "b") == b"0\n1\n2\n"
    assert not (directory / "a.jsonl").exists()
    await scribe.close()


async def test_of_two_that_create_the_same_log_one_is_refused(directory: Path) -> None:
    scribe = LogWriter(directory)
    with pause_writer(scribe, directory):
        first, second = (scribe.append("a", data, create=True) for data in (b"1\n", b"2\n"))
    await first
    for attempt in (second, scribe.append("a", b"3\n", create=True)):
        with pytest.raises(StorageError, match="log a: File exists; nothing of it was kept"):
            await attempt
    assert read_content(directory, "a") == b"1\n"
    await scribe.close()


async def test_one_that_stops_waiting_stops_nobody_else(directory: Path) -> None:
    scribe = LogWriter(directory)
    await create_logs(scribe, "a")
    with pause_writer(scribe, directory):
        impatient = scribe.append("a", b"1\n")
        patient = scribe.append("a", b"2\n")
        impatient.cancel()
    await patient
    assert read_content(directory, "a") == b"0\n1\n2\n"
    await scribe.close()


async def test_a_failure_of_the_scribe_itself_leaves_nobody_waiting(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scribe = LogWriter(directory)
    await create_logs(scribe, "a")
    with pytest.raises(StorageError, match="null byte; nothing of it was kept"):
        await scribe.append("a\0", b"x\n")
    assert "the scribe failed" in caplog.text
    await scribe.append("a", b"1\n")
    assert read_content(directory, "a") == b"0\n1\n"
    await scribe.close()


def test_a_loop_that_is_gone_does_not_stop_the_scribe(directory: Path) -> None:
    scribe = LogWriter(directory)

    async def first() -> None:
        await create_logs(scribe, "a")
        with pause_writer(scribe, directory):
            scribe.append("a", b"1\n")

    async def second() -> None:
        await scribe.append("a", b"2\n")
        await scribe.close()

    asyncio.run(first())
    asyncio.run(second())
    assert read_content(directory, "a") == b"0\n1\n2\n"
