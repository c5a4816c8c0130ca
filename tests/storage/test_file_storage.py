"""FileStorage: colliding names, full disks, vanishing logs, and files that people edit."""

import asyncio
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crabtalk.storage import Pair, Record, StorageError, make_log_name
from crabtalk.storage.records import encode_records
from tests.storage.sample_records import (
    PAIR,
    log_path,
    make_marker,
    make_message,
    make_opening,
    open_file_storage,
    seal_records,
)

ROOT = Path(__file__).parents[2]
NAME = make_log_name(PAIR)
OTHER = Pair("crab", "someone else")


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_files_it_writes_are_private(home: Path) -> None:
    old = os.umask(0)
    try:
        async with open_file_storage(home, flush=True) as storage:
            await storage.append(PAIR, [make_opening()], create=True)
            await storage.set_config_value("llm", "model", "m")
    finally:
        os.umask(old)
    assert read_mode(home / "sessions") == 0o700
    assert read_mode(log_path(home)) == 0o600
    assert read_mode(home / "config.toml") == 0o600


async def test_it_writes_nothing_before_there_is_something_to_keep(home: Path) -> None:
    async with open_file_storage(home) as storage:
        assert await storage.load_and_repair(PAIR) is None
        assert await storage.list_conversations() == []
        assert await storage.read_config() == {}
        assert not await storage.delete_conversation(PAIR)
    assert list(home.iterdir()) == []


async def test_each_of_many_appends_is_in_its_log_when_it_returns(home: Path) -> None:
    pairs = [Pair("crab", f"user {n}") for n in range(50)]
    async with open_file_storage(home, flush=True) as storage:
        await asyncio.gather(*[storage.append(p, [make_opening(p)], create=True) for p in pairs])

        async def append_messages(pair: Pair) -> None:
            for number in range(4):
                await storage.append(pair, [make_message(number)])
                stored: list[Record] = [make_opening(pair), *map(make_message, range(number + 1))]
                assert log_path(home, pair).read_bytes() == seal_records(stored)

        await asyncio.gather(*[append_messages(pair) for pair in pairs])
    for pair in pairs:
        assert log_path(home, pair).read_bytes() == seal_records(
            [make_opening(pair), *map(make_message, range(4))]
        )


async def test_appends_before_the_close_are_stored(home: Path) -> None:
    async with open_file_storage(home, flush=True) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        waiting = [
            asyncio.ensure_future(storage.append(PAIR, [make_message(n)])) for n in range(20)
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    with pytest.raises(StorageError, match="storage is closed"):
        await storage.append(PAIR, [make_message(20)])
    assert log_path(home).read_bytes() == seal_records(
        [make_opening(), *map(make_message, range(20))]
    )


# ── Names ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("storage.names")
async def test_a_log_name_that_another_pair_uses_is_left_to_that_pair(home: Path) -> None:
    """Two pairs practically never have the same hash; this test puts another pair's log there."""
    log_path(home).parent.mkdir(parents=True)
    theirs = encode_records([make_opening(OTHER), make_message(0, "theirs")])
    log_path(home).write_bytes(theirs)
    second = log_path(home).with_name(f"{NAME}-2.jsonl")
    for attempt in range(3):
        async with open_file_storage(home) as storage:
            stored = await storage.load_and_repair(PAIR)
            assert (stored is None) == (attempt == 0)
            if stored is None:
                await storage.append(PAIR, [make_opening()], create=True)
            await storage.append(PAIR, [make_message(attempt)])
            listed = {name: meta.pair for name, meta in await storage.list_conversations()}
            assert listed == {NAME: OTHER, f"{NAME}-2": PAIR}
            assert await storage.resolve_handle(NAME) == OTHER
            assert await storage.resolve_handle(f"{NAME}-2") == PAIR
    assert log_path(home).read_bytes() == theirs
    assert second.read_bytes() == seal_records(
        [make_opening(), make_message(0), make_message(1), make_message(2)]
    )
    log_path(home).unlink()
    async with open_file_storage(home) as storage:
        stored = await storage.load_and_repair(PAIR)
        assert stored is not None
        assert [record.id for record in stored.messages] == [0, 1, 2]
        await storage.append(PAIR, [make_message(3)])
        assert await storage.delete_conversation(PAIR)
        assert not second.exists()
        assert await storage.load_and_repair(PAIR) is None
        await storage.append(PAIR, [make_opening()], create=True)
    assert log_path(home).exists()


@pytest.mark.req("storage.copies")
@pytest.mark.parametrize("copy", ["copy-of-it", f"{NAME}-2", f"{NAME} (copy)"])
async def test_a_copy_of_a_log_is_not_listed_beside_it(home: Path, copy: str) -> None:
    async with open_file_storage(home) as storage:
        for pair in (PAIR, OTHER):
            await storage.append(pair, [make_opening(pair), make_message(0)], create=True)
        log_path(home).with_name(f"{copy}.jsonl").write_bytes(log_path(home).read_bytes())
        for _ in range(2):
            listed = {name: meta.pair for name, meta in await storage.list_conversations()}
            assert listed == {NAME: PAIR, make_log_name(OTHER): OTHER}
            assert {name: await storage.resolve_handle(name) for name in listed} == listed
        assert await storage.list_conversations(*PAIR) == [(NAME, await storage.read_meta(PAIR))]
    async with open_file_storage(home) as storage:  # with the saved listing cache
        assert {name for name, _ in await storage.list_conversations()} == listed.keys()


async def test_a_name_that_becomes_free_is_used_again(home: Path) -> None:
    async with open_file_storage(home) as storage:
        log_path(home).parent.mkdir()
        log_path(home).write_bytes(encode_records([make_opening(OTHER)]))
        assert await storage.load_and_repair(PAIR) is None
        log_path(home).unlink()
        assert await storage.load_and_repair(PAIR) is None
        await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    assert log_path(home).read_bytes() == seal_records([make_opening(), make_message(0)])


@pytest.mark.parametrize(
    "handle",
    [
        "",
        ".",
        "..",
        "../x",
        "../config",
        "/etc/passwd",
        "a\0",
        "a/b",
        "x" * 5000,
        "蟹" * 80,
        "\ud83e",
    ],
)
async def test_a_handle_that_could_be_a_path_resolves_to_nothing(home: Path, handle: str) -> None:
    (home / "sessions" / "a").mkdir(parents=True)
    for path in ("x.jsonl", "config.jsonl", "sessions/a/b.jsonl", "sessions/.jsonl"):
        (home / path).write_bytes(encode_records([make_opening()]))
    async with open_file_storage(home) as storage:
        assert await storage.resolve_handle(handle) is None


@pytest.mark.req("storage.delete")
async def test_deleting_removes_the_log_and_its_damaged_lines(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
        await storage.append(OTHER, [make_opening(OTHER)], create=True)
        log_path(home).write_bytes(log_path(home).read_bytes() + b"?\n")
        assert await storage.load_and_repair(PAIR) is not None
        assert log_path(home).with_suffix(".damaged").exists()
        assert len(await storage.list_conversations()) == 2
        assert await storage.delete_conversation(PAIR)
        assert not await storage.delete_conversation(PAIR)
        assert list((home / "sessions").iterdir()) == [log_path(home, OTHER)]
        assert [meta.pair for _, meta in await storage.list_conversations()] == [OTHER]
        with pytest.raises(StorageError, match="is gone"):
            await storage.append(PAIR, [make_message(1)])


# ── Listings ────────────────────────────────────────────────────────────────────────────────────


async def test_a_listing_sees_logs_that_came_and_went_without_it(home: Path) -> None:
    async with open_file_storage(home) as storage, open_file_storage(home) as other:
        await storage.append(PAIR, [make_opening()], create=True)
        assert [meta.pair for _, meta in await storage.list_conversations()] == [PAIR]
        await other.append(OTHER, [make_opening(OTHER)], create=True)
        log_path(home).unlink()
        assert [meta.pair for _, meta in await storage.list_conversations()] == [OTHER]


async def test_files_that_are_no_logs_are_reported_and_not_listed(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        (home / "sessions" / "folder.jsonl").mkdir()
        (home / "sessions" / "link.jsonl").symlink_to(log_path(home))
        (home / "sessions" / "notes.txt").write_text("mine")
        os.mkfifo(home / "sessions" / "pipe.jsonl")
        assert [name for name, _ in await storage.list_conversations()] == [NAME]
    assert {message.partition(":")[0] for message in caplog.messages} == {
        "cannot read the log folder",
        "cannot read the log link",
        "cannot read the log pipe",
    }


# ── Faults ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_link_in_place_of_a_log_is_refused(home: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(encode_records([make_opening(), make_message(0), make_marker(1)]))
    log_path(home).parent.mkdir(parents=True)
    log_path(home).symlink_to(precious)
    async with open_file_storage(home) as storage:
        for attempt in (
            storage.load_and_repair(PAIR),
            storage.read_conversation(PAIR),
            storage.read_meta(PAIR),
            storage.read_page(PAIR, 0, 10),
            storage.list_archives(PAIR),
            storage.resolve_handle(NAME),
            storage.append(PAIR, [make_message(0)]),
            storage.append(PAIR, [make_opening()], create=True),
        ):
            with pytest.raises(StorageError, match=r"symbolic links|File exists"):
                await attempt
    assert precious.read_bytes() == encode_records(
        [make_opening(), make_message(0), make_marker(1)]
    )


async def test_a_directory_in_place_of_a_log_is_a_storage_error(home: Path) -> None:
    log_path(home).mkdir(parents=True)
    async with open_file_storage(home) as storage:
        assert await storage.load_and_repair(PAIR) is None
        with pytest.raises(StorageError, match=f"cannot write to the log {NAME}: File exists"):
            await storage.append(PAIR, [make_opening()], create=True)
        with pytest.raises(StorageError, match="Is a directory"):
            await storage.append(PAIR, [make_message(0)])
        assert not await storage.delete_conversation(PAIR)
    assert log_path(home).is_dir()


async def test_a_file_in_place_of_the_directory_is_a_storage_error(home: Path) -> None:
    home.mkdir()
    (home / "sessions").touch()
    async with open_file_storage(home) as storage:
        with pytest.raises(StorageError, match="nothing of it was kept"):
            await storage.append(PAIR, [make_opening()], create=True)
        with pytest.raises(StorageError, match=r"cannot use .*sessions: Not a directory"):
            await storage.list_conversations()


@pytest.mark.req("storage.errors")
async def test_a_log_deleted_by_another_program_is_a_storage_error(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        log_path(home).unlink()
        with pytest.raises(StorageError, match=f"the log {NAME} is gone; say it again"):
            await storage.append(PAIR, [make_message(0)])
        assert await storage.load_and_repair(PAIR) is None
        await storage.append(PAIR, [make_opening()], create=True)


async def test_a_copy_that_cannot_be_made_of_damage_is_a_storage_error(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        log_path(home).write_bytes(log_path(home).read_bytes() + b"?\n")
        log_path(home).with_suffix(".damaged").mkdir()
        with pytest.raises(StorageError, match="Is a directory"):
            await storage.load_and_repair(PAIR)


# In a child process, since a limit holds for a whole process.
WITHIN_LIMITS = """
import asyncio, os, resource, sys
from pathlib import Path

from crabtalk.storage import FileStorage, StorageError
from tests.storage.sample_records import PAIR, log_path, make_opening, make_message

home = Path(sys.argv[1])
log = log_path(home)


def limit(which, value):
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


async def refused(attempt, reason):
    try:
        await attempt
    except StorageError as error:
        assert reason in str(error), error
    else:
        raise AssertionError("not refused")


"""
FULL_DISK = """
async def main():
    storage = FileStorage(home)
    limit(resource.RLIMIT_FSIZE, 40)
    first = [make_opening(), make_message(0)]
    await refused(storage.append(PAIR, first, create=True), "nothing of it was kept")
    assert not log.exists()
    limit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1])

    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    before = log.read_bytes()
    for room in (0, 1, 20):
        limit(resource.RLIMIT_FSIZE, len(before) + room)
        for _ in range(2):
            appending = storage.append(PAIR, [make_message(1)])
            await refused(appending, "File too large; nothing of it was kept")
            assert log.read_bytes() == before
    stored = await storage.load_and_repair(PAIR)
    assert stored.messages == (make_message(0),)
    limit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1])

    await storage.append(PAIR, [make_message(1)])
    stored = await storage.load_and_repair(PAIR)
    assert stored.messages == (make_message(0), make_message(1))

    await storage.set_config_value("llm", "model", "small")
    config = (home / "config.toml").read_bytes()
    limit(resource.RLIMIT_FSIZE, 10)
    await refused(storage.set_config_value("llm", "model", "large"), "File too large")
    assert (home / "config.toml").read_bytes() == config
    assert sorted(os.listdir(home)) == ["config.toml", "sessions"]
    await storage.close()


asyncio.run(main())
"""
NO_FILES_LEFT = """
async def main():
    storage = FileStorage(home)
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    await storage.load_and_repair(PAIR)
    before = log.read_bytes()
    limit(resource.RLIMIT_NOFILE, 64)
    taken = []
    while len(taken) < 64:
        try:
            taken.append(os.dup(0))
        except OSError:
            break
    appending = storage.append(PAIR, [make_message(1)])
    await refused(appending, "Too many open files; nothing of it was kept")
    await refused(storage.load_and_repair(PAIR), "Too many open files")
    await refused(storage.list_conversations(), "Too many open files")
    for descriptor in taken:
        os.close(descriptor)
    assert log.read_bytes() == before
    await storage.append(PAIR, [make_message(1)])
    stored = await storage.load_and_repair(PAIR)
    assert stored.messages == (make_message(0), make_message(1))
    await storage.close()


asyncio.run(main())
"""


def run_child(home: Path, code: str) -> None:
    home.mkdir()
    command = [sys.executable, "-c", WITHIN_LIMITS + code, str(home)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.req("storage.errors")
def test_a_full_disk_keeps_what_was_there_and_goes_on_when_there_is_room(home: Path) -> None:
    run_child(home, FULL_DISK)


def test_running_out_of_open_files_is_a_storage_error_and_passes(home: Path) -> None:
    run_child(home, NO_FILES_LEFT)


# ── Configuration ───────────────────────────────────────────────────────────────────────────────

CONFIG = """\
# My daemon.

[llm]   # the usual one
base_url = 'http://localhost:11434/v1'
model = "qwen3"   # fast enough
# api_key = "old"

[[providers]]
name = "claude"  # when it matters
models = [
    "a",  # one
    "b",
]

# nothing below
"""


@pytest.mark.req("storage.config")
async def test_configuring_changes_one_key_and_leaves_all_else_as_it_was(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(CONFIG)
    async with open_file_storage(home) as storage:
        await storage.set_config_value("llm", "model", "large")
        changed = (home / "config.toml").read_text()
        assert changed == CONFIG.replace('"qwen3"', '"large"')
        await storage.set_config_value("daemon", "model", "small")
        assert (home / "config.toml").read_text().startswith(changed.rstrip())
        assert await storage.read_config() == {
            "llm": {"base_url": "http://localhost:11434/v1", "model": "large"},
            "providers": [{"name": "claude", "models": ["a", "b"]}],
            "daemon": {"model": "small"},
        }


PIECES = [
    "# a comment",
    "top = 1  # first",
    "[llm]",
    "[llm]\nmodel = 'm'  # kept",
    "[daemon]  # ours",
    "[daemon]\nmodel = 'old'  # kept\ntcp = 'off'",
    "[daemon.deep]\nx = [1, # one\n  2]",
    "[[providers]]\nname = 'p'",
    "daemon.tcp = 'off'",
    "daemon = { tcp = 'off' }",
    "text = '''\nline\n# no comment'''",
    "",
]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(PIECES), max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.sampled_from(["model", "tcp", "new key"]),
    st.text() | st.integers(-100, 100) | st.booleans() | st.lists(st.text(), max_size=2),
)
def test_any_file_that_can_be_read_can_be_configured(
    tmp_path: Path, pieces: list[str], end: str, last: bool, key: str, value: Any
) -> None:
    text = (end.join(pieces) + end * last).replace("\r\n", "\n").replace("\n", end)
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode())

    async def main() -> dict[str, Any]:
        async with open_file_storage(tmp_path) as storage:
            await storage.set_config_value("daemon", key, value)
            return await storage.read_config()

    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(StorageError, match=r"is not valid TOML: .*; mend it or move it away"):
            asyncio.run(main())
        assert path.read_bytes() == text.encode()
        return
    expected.setdefault("daemon", {})[key] = value
    assert asyncio.run(main()) == expected
    after = path.read_bytes().decode()
    for line in text.splitlines(keepends=True):
        if not line.startswith((key, f"daemon.{key}", "daemon =")):
            assert line in after


@pytest.mark.parametrize(
    "data", [b"[llm\n", b"a = 1\na = 2\n", b"\xff", b"\xef\xbb\xbfa = 1\n", b"a = 1\rb = 2"]
)
async def test_a_file_that_is_not_valid_is_never_overwritten(home: Path, data: bytes) -> None:
    home.mkdir()
    (home / "config.toml").write_bytes(data)
    async with open_file_storage(home) as storage:
        with pytest.raises(StorageError, match=r"config.toml is not valid TOML: .*; mend it"):
            await storage.read_config()
        with pytest.raises(StorageError, match=r"config.toml is not valid TOML: .*; mend it"):
            await storage.set_config_value("llm", "model", "m")
    assert (home / "config.toml").read_bytes() == data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("llm = 5\n", "m"),
        ("llm = 'x'\n", "m"),
        ("[[llm]]\na = 1\n", "m"),
        ("[llm]\n", None),
        ("[llm]\n", object()),
        ("[llm]\n", "half \ud83e"),
    ],
)
async def test_a_setting_that_cannot_be_written_is_a_storage_error_and_changes_nothing(
    home: Path, text: str, value: Any
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)
    async with open_file_storage(home) as storage:
        with pytest.raises(StorageError, match=r"config.toml cannot be edited: .*; mend it first"):
            await storage.set_config_value("llm", "model", value)
    assert (home / "config.toml").read_text() == text


async def test_a_config_that_is_a_directory_is_a_storage_error(home: Path) -> None:
    (home / "config.toml").mkdir(parents=True)
    async with open_file_storage(home) as storage:
        with pytest.raises(StorageError, match=r"cannot use .*config.toml: Is a directory"):
            await storage.read_config()
        with pytest.raises(StorageError, match=r"cannot use .*config.toml: Is a directory"):
            await storage.set_config_value("llm", "model", "m")
