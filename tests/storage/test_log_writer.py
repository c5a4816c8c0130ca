"""The log writer: finished appends are in the file, and many appends share a flush."""

import asyncio
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crabtalk.storage import StorageError, log_writer
from crabtalk.storage.log_writer import LogWriter


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@contextmanager
def pause_writer(writer: LogWriter, directory: Path) -> Iterator[None]:
    """Blocks the writer for the duration of the block, by opening a pipe without a reader."""
    directory.mkdir(mode=0o700, exist_ok=True)
    pipe = directory / "pipe.jsonl"
    os.mkfifo(pipe)
    # This append fails in the end, which does not matter: a pipe cannot be flushed.
    writer.append("pipe", b"x\n").add_done_callback(asyncio.Future.exception)
    try:
        yield
    finally:
        os.close(os.open(pipe, os.O_RDONLY))


def read_content(directory: Path, name: str) -> bytes:
    return (directory / f"{name}.jsonl").read_bytes()


async def create_logs(writer: LogWriter, *names: str) -> None:
    await asyncio.gather(*[writer.append(name, b"0\n", create=True) for name in names])


async def test_lines_are_in_the_file_when_the_append_is_done(directory: Path) -> None:
    writer = LogWriter(directory)
    await writer.append("a", b"one\n", create=True)
    assert read_content(directory, "a") == b"one\n"
    await writer.append("a", b"two\nthree\n")
    assert read_content(directory, "a") == b"one\ntwo\nthree\n"
    assert writer.appends == writer.flushes == 2
    await writer.close()


async def test_files_and_their_directory_are_private(directory: Path) -> None:
    old = os.umask(0)
    try:
        writer = LogWriter(directory)
        await writer.append("a", b"one\n", create=True)
        await writer.close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "a.jsonl").stat().st_mode) == 0o600


@pytest.mark.req("storage.group_commit")
async def test_appends_that_come_together_share_a_flush_and_keep_their_order(
    directory: Path,
) -> None:
    writer = LogWriter(directory)
    names = [f"log-{n}" for n in range(50)]
    await create_logs(writer, *names)
    before = writer.flushes
    done: dict[str, list[int]] = {name: [] for name in names}

    def append(name: str, number: int) -> asyncio.Future[None]:
        def note(_: asyncio.Future[None]) -> None:
            if b"%d" % number in read_content(directory, name).splitlines():
                done[name].append(number)

        future = writer.append(name, b"%d\n" % number)
        future.add_done_callback(note)
        return future

    with pause_writer(writer, directory):
        waiting = [append(name, number) for number in range(1, 5) for name in names]
        await asyncio.sleep(0)
        assert not any(future.done() for future in waiting)
    await asyncio.gather(*waiting)
    for name in names:
        assert read_content(directory, name) == b"0\n1\n2\n3\n4\n"
        assert done[name] == [1, 2, 3, 4]
    # On Linux one flush of the file system, elsewhere one per log, but not one per append. The
    # first few appends may have been written together with the pipe.
    most = 1 if sys.platform == "linux" else len(names)
    assert writer.flushes - before < most + log_writer.MIN_FOR_SHARED_FLUSH
    await writer.close()


def refuse_flush(descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("flush", [None, refuse_flush], ids=["not offered", "refused"])
async def test_without_a_shared_flush_each_log_is_flushed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, flush: Callable[[int], None] | None
) -> None:
    monkeypatch.setattr(log_writer, "file_system_flush", lambda: flush)
    writer = LogWriter(directory)
    names = [f"log-{n}" for n in range(20)]
    await create_logs(writer, *names)
    before = writer.flushes
    with pause_writer(writer, directory):
        waiting = [writer.append(name, b"1\n") for name in names * 3]
    await asyncio.gather(*waiting)
    # The first few appends may have been written together with the pipe.
    assert len(names) <= writer.flushes - before <= 2 * len(names)
    await writer.close()


@pytest.mark.req("storage.group_commit")
async def test_an_append_is_done_only_after_its_flush(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guarantee is the order of system calls, so this test records them."""
    calls: list[str] = []
    fsync = os.fsync

    def record_flush(descriptor: int) -> None:
        status = os.fstat(descriptor)
        is_directory = stat.S_ISDIR(status.st_mode)
        calls.append("directory" if is_directory else f"log of {status.st_size} bytes")
        fsync(descriptor)

    async def append(data: bytes, *, create: bool) -> None:
        done = writer.append("a", data, create=create)
        done.add_done_callback(lambda _: calls.append("done"))
        await done

    for name in {"fsync", "fdatasync"} & set(dir(os)):
        monkeypatch.setattr(os, name, record_flush)
    writer = LogWriter(directory)
    await append(b"one\n", create=True)
    # The home, because of the new directory; the directory, because of the new log; the log.
    assert calls == ["directory", "directory", "log of 4 bytes", "done"]
    await append(b"two\n", create=False)
    assert calls[4:] == ["log of 8 bytes", "done"]
    await writer.close()


async def test_lines_whose_flush_fails_are_removed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No real file system fails a flush on demand, so this test simulates a broken disk."""
    writer = LogWriter(directory)
    await create_logs(writer, "a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync" if hasattr(os, "fdatasync") else "fsync", refuse_flush)
        with pytest.raises(StorageError, match=r"log a: .*; nothing of it was kept"):
            await writer.append("a", b"lost\n")
    assert read_content(directory, "a") == b"0\n"
    await writer.append("a", b"1\n")
    assert read_content(directory, "a") == b"0\n1\n"
    await writer.close()


async def test_flush_false_flushes_nothing(directory: Path) -> None:
    writer = LogWriter(directory, flush=False)
    await create_logs(writer, "a", "b")
    await asyncio.gather(*[writer.append("a", b"1\n") for _ in range(100)])
    assert read_content(directory, "a") == b"0\n" + b"1\n" * 100
    assert writer.flushes == 0
    assert writer.appends == 102
    await writer.close()


async def test_closing_writes_pending_appends_and_refuses_new_ones(directory: Path) -> None:
    writer = LogWriter(directory)
    await create_logs(writer, "a")
    with pause_writer(writer, directory):
        waiting = [writer.append("a", b"%d\n" % number) for number in range(1, 10)]
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        with pytest.raises(StorageError, match="storage is closed"):
            await writer.append("a", b"late\n")
        assert not closing.done()
    await closing
    assert read_content(directory, "a") == b"".join(b"%d\n" % number for number in range(10))
    await asyncio.gather(*waiting)
    await writer.close()


async def test_a_log_writer_that_never_wrote_can_be_closed(directory: Path) -> None:
    writer = LogWriter(directory)
    await writer.close()
    with pytest.raises(StorageError, match="closed"):
        await writer.append("a", b"x\n", create=True)
    assert not directory.exists()


async def test_a_log_that_is_gone_fails_its_own_appends_only(directory: Path) -> None:
    writer = LogWriter(directory)
    await create_logs(writer, "a", "b")
    (directory / "a.jsonl").unlink()
    with pause_writer(writer, directory):
        gone = [writer.append("a", b"1\n"), writer.append("a", b"2\n")]
        fine = [writer.append("b", b"1\n"), writer.append("b", b"2\n")]
    await asyncio.gather(*fine)
    for done in gone:
        with pytest.raises(StorageError, match="the log a is gone; say it again to begin"):
            await done
    assert read_content(directory, "b") == b"0\n1\n2\n"
    assert not (directory / "a.jsonl").exists()
    await writer.close()


async def test_of_two_that_create_the_same_log_one_is_refused(directory: Path) -> None:
    writer = LogWriter(directory)
    with pause_writer(writer, directory):
        first, second = (writer.append("a", data, create=True) for data in (b"1\n", b"2\n"))
    await first
    for attempt in (second, writer.append("a", b"3\n", create=True)):
        with pytest.raises(StorageError, match="log a: File exists; nothing of it was kept"):
            await attempt
    assert read_content(directory, "a") == b"1\n"
    await writer.close()


async def test_a_cancelled_append_does_not_stop_others(directory: Path) -> None:
    writer = LogWriter(directory)
    await create_logs(writer, "a")
    with pause_writer(writer, directory):
        impatient = writer.append("a", b"1\n")
        patient = writer.append("a", b"2\n")
        impatient.cancel()
    await patient
    assert read_content(directory, "a") == b"0\n1\n2\n"
    await writer.close()


async def test_a_failure_of_the_log_writer_itself_leaves_no_caller_waiting(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = LogWriter(directory)
    await create_logs(writer, "a")
    with pytest.raises(StorageError, match="null byte; nothing of it was kept"):
        await writer.append("a\0", b"x\n")
    assert "the log writer failed" in caplog.text
    await writer.append("a", b"1\n")
    assert read_content(directory, "a") == b"0\n1\n"
    await writer.close()


def test_a_closed_event_loop_does_not_stop_the_log_writer(directory: Path) -> None:
    writer = LogWriter(directory)

    async def first() -> None:
        await create_logs(writer, "a")
        with pause_writer(writer, directory):
            writer.append("a", b"1\n")

    async def second() -> None:
        await writer.append("a", b"2\n")
        await writer.close()

    asyncio.run(first())
    asyncio.run(second())
    assert read_content(directory, "a") == b"0\n1\n2\n"
