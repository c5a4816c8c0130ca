"""FileStorage: names that collide, disks that are full, logs that vanish, files people edit."""

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

from crabtalk.storage import Pair, Record, StorageError, log_name
from crabtalk.storage.records import encode
from tests.storage.samples import PAIR, folded, log_of, opened, opening, said, sealed

ROOT = Path(__file__).parents[2]
NAME = log_name(PAIR)
OTHER = Pair("crab", "someone else")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_what_it_writes_is_private(home: Path) -> None:
    old = os.umask(0)
    try:
        async with opened(home, flush=True) as storage:
            await storage.append(PAIR, [opening()], create=True)
            await storage.configure("llm", "model", "m")
    finally:
        os.umask(old)
    assert mode(home / "sessions") == 0o700
    assert mode(log_of(home)) == 0o600
    assert mode(home / "config.toml") == 0o600


async def test_it_writes_nothing_before_there_is_something_to_keep(home: Path) -> None:
    async with opened(home) as storage:
        assert await storage.load(PAIR) is None
        assert await storage.conversations() == []
        assert await storage.config() == {}
        assert not await storage.delete(PAIR)
    assert list(home.iterdir()) == []


async def test_each_of_many_appends_is_in_its_log_when_it_returns(home: Path) -> None:
    pairs = [Pair("crab", f"user {n}") for n in range(50)]
    async with opened(home, flush=True) as storage:
        await asyncio.gather(*[storage.append(p, [opening(p)], create=True) for p in pairs])

        async def talk(pair: Pair) -> None:
            for number in range(4):
                await storage.append(pair, [said(number)])
                kept: list[Record] = [opening(pair), *map(said, range(number + 1))]
                assert log_of(home, pair).read_bytes() == sealed(kept)

        await asyncio.gather(*[talk(pair) for pair in pairs])
    for pair in pairs:
        assert log_of(home, pair).read_bytes() == sealed([opening(pair), *map(said, range(4))])


async def test_what_was_given_before_it_was_closed_is_kept(home: Path) -> None:
    async with opened(home, flush=True) as storage:
        await storage.append(PAIR, [opening()], create=True)
        waiting = [asyncio.ensure_future(storage.append(PAIR, [said(n)])) for n in range(20)]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    with pytest.raises(StorageError, match="storage is closed"):
        await storage.append(PAIR, [said(20)])
    assert log_of(home).read_bytes() == sealed([opening(), *map(said, range(20))])


# ── Names ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("storage.names")
async def test_a_name_that_another_pair_has_is_left_to_it(home: Path) -> None:
    """Two pairs with one hash, as good as never: here somebody renamed a log."""
    log_of(home).parent.mkdir(parents=True)
    theirs = encode([opening(OTHER), said(0, "theirs")])
    log_of(home).write_bytes(theirs)
    second = log_of(home).with_name(f"{NAME}-2.jsonl")
    for attempt in range(3):
        async with opened(home) as storage:
            stored = await storage.load(PAIR)
            assert (stored is None) == (attempt == 0)
            if stored is None:
                await storage.append(PAIR, [opening()], create=True)
            await storage.append(PAIR, [said(attempt)])
            listed = {name: meta.pair for name, meta in await storage.conversations()}
            assert listed == {NAME: OTHER, f"{NAME}-2": PAIR}
            assert await storage.resolve(NAME) == OTHER
            assert await storage.resolve(f"{NAME}-2") == PAIR
    assert log_of(home).read_bytes() == theirs
    assert second.read_bytes() == sealed([opening(), said(0), said(1), said(2)])
    log_of(home).unlink()
    async with opened(home) as storage:
        stored = await storage.load(PAIR)
        assert stored is not None
        assert [record.id for record in stored.messages] == [0, 1, 2]
        await storage.append(PAIR, [said(3)])
        assert await storage.delete(PAIR)
        assert not second.exists()
        assert await storage.load(PAIR) is None
        await storage.append(PAIR, [opening()], create=True)
    assert log_of(home).exists()


@pytest.mark.req("storage.copies")
@pytest.mark.parametrize("copy", ["copy-of-it", f"{NAME}-2", f"{NAME} (copy)"])
async def test_a_copy_of_a_log_is_not_listed_beside_it(home: Path, copy: str) -> None:
    async with opened(home) as storage:
        for pair in (PAIR, OTHER):
            await storage.append(pair, [opening(pair), said(0)], create=True)
        log_of(home).with_name(f"{copy}.jsonl").write_bytes(log_of(home).read_bytes())
        for _ in range(2):
            listed = {name: meta.pair for name, meta in await storage.conversations()}
            assert listed == {NAME: PAIR, log_name(OTHER): OTHER}
            assert {name: await storage.resolve(name) for name in listed} == listed
        assert await storage.conversations(*PAIR) == [(NAME, await storage.meta(PAIR))]
    async with opened(home) as storage:  # with the catalogue of the one before
        assert {name for name, _ in await storage.conversations()} == listed.keys()


async def test_a_name_that_becomes_free_is_used_again(home: Path) -> None:
    async with opened(home) as storage:
        log_of(home).parent.mkdir()
        log_of(home).write_bytes(encode([opening(OTHER)]))
        assert await storage.load(PAIR) is None
        log_of(home).unlink()
        assert await storage.load(PAIR) is None
        await storage.append(PAIR, [opening(), said(0)], create=True)
    assert log_of(home).read_bytes() == sealed([opening(), said(0)])


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
async def test_a_handle_that_could_be_a_path_is_nobodys(home: Path, handle: str) -> None:
    (home / "sessions" / "a").mkdir(parents=True)
    for path in ("x.jsonl", "config.jsonl", "sessions/a/b.jsonl", "sessions/.jsonl"):
        (home / path).write_bytes(encode([opening()]))
    async with opened(home) as storage:
        assert await storage.resolve(handle) is None


@pytest.mark.req("storage.delete")
async def test_deleting_removes_the_log_and_what_was_set_aside_of_it(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening(), said(0)], create=True)
        await storage.append(OTHER, [opening(OTHER)], create=True)
        log_of(home).write_bytes(log_of(home).read_bytes() + b"?\n")
        assert await storage.load(PAIR) is not None
        assert log_of(home).with_suffix(".damaged").exists()
        assert len(await storage.conversations()) == 2
        assert await storage.delete(PAIR)
        assert not await storage.delete(PAIR)
        assert list((home / "sessions").iterdir()) == [log_of(home, OTHER)]
        assert [meta.pair for _, meta in await storage.conversations()] == [OTHER]
        with pytest.raises(StorageError, match="is gone"):
            await storage.append(PAIR, [said(1)])


# ── Listings ────────────────────────────────────────────────────────────────────────────────────


async def test_a_listing_sees_logs_that_came_and_went_without_it(home: Path) -> None:
    async with opened(home) as storage, opened(home) as other:
        await storage.append(PAIR, [opening()], create=True)
        assert [meta.pair for _, meta in await storage.conversations()] == [PAIR]
        await other.append(OTHER, [opening(OTHER)], create=True)
        log_of(home).unlink()
        assert [meta.pair for _, meta in await storage.conversations()] == [OTHER]


async def test_what_is_no_log_is_not_listed_and_reported(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening()], create=True)
        (home / "sessions" / "folder.jsonl").mkdir()
        (home / "sessions" / "link.jsonl").symlink_to(log_of(home))
        (home / "sessions" / "notes.txt").write_text("mine")
        os.mkfifo(home / "sessions" / "pipe.jsonl")
        assert [name for name, _ in await storage.conversations()] == [NAME]
    assert {message.partition(":")[0] for message in caplog.messages} == {
        "cannot read the log folder",
        "cannot read the log link",
        "cannot read the log pipe",
    }


# ── Faults ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_link_in_place_of_a_log_is_refused(home: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(encode([opening(), said(0), folded(1)]))
    log_of(home).parent.mkdir(parents=True)
    log_of(home).symlink_to(precious)
    async with opened(home) as storage:
        for attempt in (
            storage.load(PAIR),
            storage.read(PAIR),
            storage.meta(PAIR),
            storage.page(PAIR, 0, 10),
            storage.archives(PAIR),
            storage.resolve(NAME),
            storage.append(PAIR, [said(0)]),
            storage.append(PAIR, [opening()], create=True),
        ):
            with pytest.raises(StorageError, match=r"symbolic links|File exists"):
                await attempt
    assert precious.read_bytes() == encode([opening(), said(0), folded(1)])


async def test_a_directory_in_place_of_a_log_is_a_storage_error(home: Path) -> None:
    log_of(home).mkdir(parents=True)
    async with opened(home) as storage:
        assert await storage.load(PAIR) is None
        with pytest.raises(StorageError, match=f"cannot write to the log {NAME}: File exists"):
            await storage.append(PAIR, [opening()], create=True)
        with pytest.raises(StorageError, match="Is a directory"):
            await storage.append(PAIR, [said(0)])
        assert not await storage.delete(PAIR)
    assert log_of(home).is_dir()


async def test_a_file_in_place_of_the_directory_is_a_storage_error(home: Path) -> None:
    home.mkdir()
    (home / "sessions").touch()
    async with opened(home) as storage:
        with pytest.raises(StorageError, match="nothing of it was kept"):
            await storage.append(PAIR, [opening()], create=True)
        with pytest.raises(StorageError, match=r"cannot use .*sessions: Not a directory"):
            await storage.conversations()


@pytest.mark.req("storage.errors")
async def test_a_log_deleted_under_our_feet_is_a_storage_error(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening()], create=True)
        log_of(home).unlink()
        with pytest.raises(StorageError, match=f"the log {NAME} is gone; say it again"):
            await storage.append(PAIR, [said(0)])
        assert await storage.load(PAIR) is None
        await storage.append(PAIR, [opening()], create=True)


async def test_a_copy_that_cannot_be_made_of_damage_is_a_storage_error(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening()], create=True)
        log_of(home).write_bytes(log_of(home).read_bytes() + b"?\n")
        log_of(home).with_suffix(".damaged").mkdir()
        with pytest.raises(StorageError, match="Is a directory"):
            await storage.load(PAIR)


# In a process of its own, since a limit holds for all of it.
WITHIN_LIMITS = """
import asyncio, os, resource, sys
from pathlib import Path

from crabtalk.storage import FileStorage, StorageError
from tests.storage.samples import PAIR, log_of, opening, said

home = Path(sys.argv[1])
log = log_of(home)


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
    await refused(storage.append(PAIR, [opening(), said(0)], create=True), "nothing of it was kept")
    assert not log.exists()
    limit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1])

    await storage.append(PAIR, [opening(), said(0)], create=True)
    before = log.read_bytes()
    for room in (0, 1, 20):
        limit(resource.RLIMIT_FSIZE, len(before) + room)
        for _ in range(2):
            await refused(storage.append(PAIR, [said(1)]), "File too large; nothing of it was kept")
            assert log.read_bytes() == before
    stored = await storage.load(PAIR)
    assert stored.messages == (said(0),)
    limit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1])

    await storage.append(PAIR, [said(1)])
    stored = await storage.load(PAIR)
    assert stored.messages == (said(0), said(1))

    await storage.configure("llm", "model", "small")
    config = (home / "config.toml").read_bytes()
    limit(resource.RLIMIT_FSIZE, 10)
    await refused(storage.configure("llm", "model", "large"), "File too large")
    assert (home / "config.toml").read_bytes() == config
    assert sorted(os.listdir(home)) == ["config.toml", "sessions"]
    await storage.close()


asyncio.run(main())
"""
NO_FILES_LEFT = """
async def main():
    storage = FileStorage(home)
    await storage.append(PAIR, [opening(), said(0)], create=True)
    await storage.load(PAIR)
    before = log.read_bytes()
    limit(resource.RLIMIT_NOFILE, 64)
    taken = []
    while len(taken) < 64:
        try:
            taken.append(os.dup(0))
        except OSError:
            break
    await refused(storage.append(PAIR, [said(1)]), "Too many open files; nothing of it was kept")
    await refused(storage.load(PAIR), "Too many open files")
    await refused(storage.conversations(), "Too many open files")
    for descriptor in taken:
        os.close(descriptor)
    assert log.read_bytes() == before
    await storage.append(PAIR, [said(1)])
    stored = await storage.load(PAIR)
    assert stored.messages == (said(0), said(1))
    await storage.close()


asyncio.run(main())
"""


def child(home: Path, code: str) -> None:
    home.mkdir()
    command = [sys.executable, "-c", WITHIN_LIMITS + code, str(home)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.req("storage.errors")
def test_a_full_disk_keeps_what_was_there_and_goes_on_when_there_is_room(home: Path) -> None:
    child(home, FULL_DISK)


def test_running_out_of_open_files_is_a_storage_error_and_passes(home: Path) -> None:
    child(home, NO_FILES_LEFT)


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
    async with opened(home) as storage:
        await storage.configure("llm", "model", "large")
        changed = (home / "config.toml").read_text()
        assert changed == CONFIG.replace('"qwen3"', '"large"')
        await storage.configure("daemon", "model", "small")
        assert (home / "config.toml").read_text().startswith(changed.rstrip())
        assert await storage.config() == {
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
        async with opened(tmp_path) as storage:
            await storage.configure("daemon", key, value)
            return await storage.config()

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
    async with opened(home) as storage:
        with pytest.raises(StorageError, match=r"config.toml is not valid TOML: .*; mend it"):
            await storage.config()
        with pytest.raises(StorageError, match=r"config.toml is not valid TOML: .*; mend it"):
            await storage.configure("llm", "model", "m")
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
async def test_what_cannot_be_set_is_a_storage_error_and_changes_nothing(
    home: Path, text: str, value: Any
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)
    async with opened(home) as storage:
        with pytest.raises(StorageError, match=r"config.toml cannot be edited: .*; mend it first"):
            await storage.configure("llm", "model", value)
    assert (home / "config.toml").read_text() == text


async def test_a_config_that_is_a_directory_is_a_storage_error(home: Path) -> None:
    (home / "config.toml").mkdir(parents=True)
    async with opened(home) as storage:
        with pytest.raises(StorageError, match=r"cannot use .*config.toml: Is a directory"):
            await storage.config()
        with pytest.raises(StorageError, match=r"cannot use .*config.toml: Is a directory"):
            await storage.configure("llm", "model", "m")
