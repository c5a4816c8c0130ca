"""The file tools, called through the hook on a real file system."""

import asyncio
import difflib
import os
import stat
import struct
import tempfile
import threading
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from crabtalk.hooks import files
from crabtalk.hooks.files import (
    FileExcerpt,
    FilesHook,
    describe_nearest_lines,
    list_match_lines,
    replace_only_match,
)
from crabtalk.hooks.image_info import MAX_BYTES, detect_image
from crabtalk.hooks.paths import PinnedFile
from crabtalk.model import Image
from crabtalk.runtime import Env, Run, ToolDispatch, ToolError, ToolOutput
from crabtalk.storage import Agent, AgentError, Pair

PATIENCE = 20


class FileToolSession:
    """A conversation that uses the tools in a directory."""

    def __init__(
        self, cwd: Path, hook: FilesHook | None = None, *, roots: list[str] | None = None
    ) -> None:
        self.cwd = cwd
        self.hook = hook or FilesHook()
        self.pair = Pair("crab", "user")
        self.register(roots)

    def register(self, roots: list[str] | None = None) -> None:
        hooks = {"files": {"roots": roots}} if roots is not None else {}
        agent = self.hook.on_build_agent(Agent(self.pair.agent, "You are crab.", hooks=hooks))
        self.hook.on_register_agent(agent.name, agent)

    def open_conversation(self, sender: str) -> "FileToolSession":
        """Return another conversation with the same hook."""
        other = FileToolSession(self.cwd, self.hook)
        other.pair = Pair(self.pair.agent, sender)
        return other

    async def call(self, name: str, **arguments: object) -> str:
        text = await self.call_raw(name, **arguments)
        assert isinstance(text, str)
        return text

    async def read_image(self, path: Path) -> ToolOutput:
        found = await self.call_raw("read", path=str(path))
        assert isinstance(found, ToolOutput)
        return found

    async def call_raw(self, name: str, **arguments: object) -> str | ToolOutput:
        run = Run("run-1", self.pair, self.pair.agent, Env(), 8, 1024, cwd=self.cwd)
        call = ToolDispatch(
            name, msgspec.json.encode(arguments).decode(), "c1", *self.pair, run, self.cwd
        )
        work = self.hook.dispatch(call)
        assert work is not None
        async with asyncio.timeout(PATIENCE):
            return await work

    async def read(self, path: object, **options: object) -> str:
        return await self.call("read", path=str(path), **options)

    async def edit(self, path: object, old: str, new: str) -> str:
        return await self.call("edit", path=str(path), old_string=old, new_string=new)

    async def expect_refusal(self, name: str, **arguments: object) -> str:
        with pytest.raises(ToolError) as refused:
            await self.call(name, **arguments)
        return str(refused.value)

    async def expect_refused_edit(self, path: object, old: str, new: str) -> str:
        return await self.expect_refusal("edit", path=str(path), old_string=old, new_string=new)


@pytest.fixture
def session(tmp_path: Path) -> FileToolSession:
    return FileToolSession(tmp_path)


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("one\ntwo\nthree\n")
    return path


# ── read ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.read.format")
async def test_read_numbers_the_lines_and_says_how_many_there_are(
    session: FileToolSession, note: Path
) -> None:
    assert await session.read("note.txt") == "1\tone\n2\ttwo\n3\tthree\n\n--- 3 total lines ---"
    assert await session.read(note) == await session.read("note.txt")


@pytest.mark.req("files.read.format")
@pytest.mark.parametrize(
    ("offset", "limit", "lines", "shown"),
    [
        (2, None, "2\ttwo\n3\tthree\n", "2-3"),
        (None, 2, "1\tone\n2\ttwo\n", "1-2"),
        (2, 1, "2\ttwo\n", "2-2"),
        (3, 99, "3\tthree\n", "3-3"),
        (0, 1, "1\tone\n", "1-1"),
        (-5, -5, "1\tone\n", "1-1"),
    ],
)
async def test_read_shows_a_part_and_says_which(
    session: FileToolSession,
    note: Path,
    offset: int | None,
    limit: int | None,
    lines: str,
    shown: str,
) -> None:
    answer = await session.read(note, offset=offset, limit=limit)
    assert answer == f"{lines}\n--- 3 total lines (showing lines {shown}) ---"


@pytest.mark.req("files.read.format")
async def test_read_shows_two_thousand_lines_unless_told_otherwise(
    session: FileToolSession, note: Path
) -> None:
    note.write_text("x\n" * 2001)
    answer = await session.read(note)
    assert answer.endswith("2000\tx\n\n--- 2001 total lines (showing lines 1-2000) ---")


@pytest.mark.req("files.read.past_end")
async def test_an_offset_past_the_end_is_a_notice_and_does_not_count_as_read(
    session: FileToolSession, note: Path
) -> None:
    answer = await session.read(note, offset=4)
    assert answer == f"offset 4 is past the end: {note} has 3 lines"
    assert "was not read" in await session.expect_refused_edit(note, "one", "1")
    assert "past the end" in await session.read(note, offset=10**40)


@pytest.mark.req("files.read.past_end")
async def test_an_empty_file_is_a_notice(session: FileToolSession, note: Path) -> None:
    note.write_text("")
    assert await session.read(note) == f"{note} is empty: it has 0 lines"


@pytest.mark.req("files.read.text")
async def test_a_byte_order_mark_is_not_shown_and_line_ends_are_kept(
    session: FileToolSession, note: Path
) -> None:
    note.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert await session.read(note) == "1\tone\r\n2\ttwo\n\n--- 2 total lines ---"


@pytest.mark.req("files.read.refused")
@pytest.mark.parametrize("data", [b"\xff\xfeo\0n\0", b"caf\xe9\n", b"half \xe2\x82"])
async def test_a_file_that_is_not_utf_8_is_refused(
    session: FileToolSession, note: Path, data: bytes
) -> None:
    note.write_bytes(data)
    assert "is not UTF-8 text; look at it with bash" in await session.expect_refusal(
        "read", path=str(note)
    )


@pytest.mark.req("files.read.refused")
async def test_missing_files_and_directories_are_refused(
    session: FileToolSession, tmp_path: Path
) -> None:
    assert "there is no file" in await session.expect_refusal("read", path="nothing")
    assert "there is no file" in await session.expect_refusal("read", path="no/thing")
    (tmp_path / "dangling").symlink_to("nothing")
    assert "there is no file" in await session.expect_refusal("read", path="dangling")
    assert "is a directory" in await session.expect_refusal("read", path=".")
    assert "cannot use" in await session.expect_refusal("read", path="x" * 300)


@pytest.mark.req("files.read.special")
async def test_pipes_and_devices_are_refused_at_once(
    session: FileToolSession, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("pipe", "/dev/zero", "/dev/tty"):
        assert "not a regular file" in await session.expect_refusal("read", path=path)
        assert "not a regular file" in await session.expect_refused_edit(path, "a", "b")


@pytest.mark.req("files.size")
async def test_more_than_fifty_mebibytes_are_refused(session: FileToolSession, note: Path) -> None:
    os.truncate(note, 60_000_000)
    assert "too large: more than 52428800 bytes" in await session.expect_refusal(
        "read", path=str(note)
    )
    assert "too large" in await session.expect_refused_edit(note, "one", "1")


@pytest.mark.req("files.size")
@pytest.mark.one_loop
async def test_fifty_mebibytes_are_not(session: FileToolSession, note: Path) -> None:
    note.write_bytes(b"one\n" + b"\n" * (52_428_800 - 8) + b"two\n")
    answer = await session.read(note, offset=52_428_790)
    total = 52_428_800 - 8 + 2
    assert answer.startswith("52428790\t\n")
    assert answer.endswith(
        f"{total}\ttwo\n\n--- {total} total lines (showing lines 52428790-{total}) ---"
    )
    assert "too large" in await session.expect_refused_edit(note, "two", "three")
    assert await session.edit(note, "two", "2") == "ok"


@pytest.mark.req("files.size")
async def test_a_file_that_grows_while_it_is_read_is_refused_as_well(
    session: FileToolSession, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "read", lambda descriptor, size: b"x" * size)
    assert "too large" in await session.expect_refusal("read", path=str(note))


@pytest.mark.req("files.read.bounded")
async def test_a_huge_line_is_cut_with_a_note(session: FileToolSession, note: Path) -> None:
    note.write_text("a" * 3_000_000 + "\nend\n")
    answer = await session.read(note)
    assert answer == (
        f"1\t{'a' * 2000} … (2998000 more characters in this line)\n2\tend\n\n--- 2 total lines ---"
    )


@pytest.mark.req("files.read.bounded")
async def test_lines_that_do_not_fit_are_left_out_and_can_be_read_next(
    session: FileToolSession, note: Path
) -> None:
    note.write_text("".join(f"{number} {'é' * 400}\n" for number in range(1, 301)))
    offset, seen = 1, ""
    while True:
        answer = await session.read(note, offset=offset, limit=290)
        assert len(answer.encode()) < 49 * 1024
        lines, _, trailer = answer.partition("\n\n---")
        seen += lines + "\n"
        if "left out" not in trailer:
            break
        last = int(lines.rpartition("\n")[2].partition("\t")[0])
        end = min(offset + 289, 300)
        assert f"(showing lines {offset}-{last}) ---" in trailer
        assert trailer.endswith(
            f"\nlines {last + 1}-{end} are left out, there is no room for them; "
            f"go on with offset {last + 1}"
        )
        offset = last + 1
    assert seen == "".join(f"{number}\t{number} {'é' * 400}\n" for number in range(1, 301))


@pytest.mark.req("files.read.format")
@given(
    text=st.text(st.sampled_from("ab\n\r\té\u2028\ufeff")),
    cuts=st.lists(st.integers(0, 50)),
    first=st.integers(1, 8),
    count=st.integers(1, 8),
)
@example(text="\n", cuts=[], first=1, count=1)
def test_lines_are_the_same_for_any_split_of_the_text(
    text: str, cuts: list[int], first: int, count: int
) -> None:
    excerpt = FileExcerpt(first, first + count - 1)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, end in pairwise(bounds):
        excerpt.add(text[start:end])
    excerpt.close()
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    assert excerpt.total == len(lines)
    if first <= len(lines):
        shown = list(enumerate(lines, 1))[first - 1 : first - 1 + count]
        expected = "".join(
            f"{number}\t{line.removeprefix(chr(0xFEFF)) if number == 1 else line}\n"
            for number, line in shown
        )
        assert excerpt.text().partition("\n---")[0] == expected


PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\0\0\0"
GIF = b"GIF89a" + struct.pack("<HH", 320, 200) + b"\0\0\0;"
JPEG = (
    b"\xff\xd8\xff\xe0\x00\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
    b"\xff\xc4\x00\x04\0\0"
    b"\xff\xff\xc2\x00\x11\x08" + struct.pack(">HH", 600, 800) + b"\x03"
)
WEBP = b"RIFF\x20\0\0\0WEBP"
LOSSY = WEBP + b"VP8 \x14\0\0\0\x30\x01\0\x9d\x01\x2a" + struct.pack("<HH", 0x4000 | 550, 368)
LOSSLESS = WEBP + b"VP8L\x14\0\0\0\x2f" + struct.pack("<I", (386 - 1) | (395 - 1) << 14)
EXTENDED = WEBP + b"VP8X\x0a\0\0\0\x10\0\0\0" + b"\x8f\x01\0" + b"\x2c\x01\0"


@pytest.mark.req("files.read.images")
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (PNG, "png, 640x480 pixels"),
        (GIF, "gif, 320x200 pixels"),
        (JPEG, "jpeg, 800x600 pixels"),
        (LOSSY, "webp, 550x368 pixels"),
        (LOSSLESS, "webp, 386x395 pixels"),
        (EXTENDED, "webp, 400x301 pixels"),
        (PNG[:18], "png, damaged or of unknown size"),
        (JPEG[:20], "jpeg, damaged or of unknown size"),
        (LOSSY[:20], "webp, damaged or of unknown size"),
    ],
)
async def test_an_image_is_described(
    session: FileToolSession, note: Path, data: bytes, what: str
) -> None:
    note.write_bytes(data)
    found = await session.read_image(note)
    assert found.text.startswith(f"image: {what}, {len(data)} bytes")
    assert "was not read" in await session.expect_refused_edit(note, "a", "b")


@pytest.mark.req("files.read.images.shown")
async def test_an_image_that_models_accept_is_shown_to_them(
    session: FileToolSession, note: Path
) -> None:
    note.write_bytes(PNG)
    found = await session.read_image(note)
    assert found.images == (Image("image/png", PNG),)


@pytest.mark.req("files.read.images.shown")
@pytest.mark.parametrize(
    "data",
    [PNG[:18], PNG.ljust(MAX_BYTES + 1, b"\0"), PNG[:16] + struct.pack(">II", 8001, 1)],
    ids=["damaged", "too many bytes", "too many pixels"],
)
async def test_an_image_that_no_model_accepts_is_only_described(
    session: FileToolSession, note: Path, data: bytes
) -> None:
    note.write_bytes(data)
    found = await session.read_image(note)
    assert found.images == ()
    assert "make it smaller" in found.text


@pytest.mark.req("files.read.images")
@given(st.sampled_from([PNG[:8], GIF[:6], b"\xff\xd8\xff", WEBP]), st.binary(max_size=200))
def test_a_damaged_image_does_not_break_reading(start: bytes, rest: bytes) -> None:
    assert str(detect_image(start + rest)).startswith("image: ")


# ── edit ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.edit.replaces")
async def test_edit_replaces_text_in_a_file_that_was_read(
    session: FileToolSession, note: Path
) -> None:
    await session.read(note)
    assert await session.edit("note.txt", "two\nthree", "2\n3") == "ok"
    assert note.read_text() == "one\n2\n3\n"
    assert await session.edit(note, "one\n", "") == "ok"
    assert note.read_text() == "2\n3\n"


@pytest.mark.req("files.edit.read_first")
async def test_only_the_conversation_that_read_a_file_may_edit_it(
    session: FileToolSession, note: Path
) -> None:
    await session.read(note)
    other = session.open_conversation("tg:7")
    assert await other.expect_refused_edit(note, "one", "1") == (
        f"{note} was not read in this conversation; read it first"
    )
    await other.read(note)
    assert await other.edit(note, "one", "1") == "ok"


@pytest.mark.req("files.edit.read_first")
async def test_a_file_counts_as_read_through_any_path(
    session: FileToolSession, note: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(note)
    await session.read("link")
    assert await session.edit(note, "one", "1") == "ok"


@pytest.mark.req("files.edit.stale")
async def test_a_file_that_changed_since_must_be_read_again(
    session: FileToolSession, note: Path
) -> None:
    await session.read(note)
    note.write_text("one and more\n")
    assert await session.expect_refused_edit(note, "one", "1") == (
        f"{note} changed since it was read; read it again, then edit it"
    )
    assert note.read_text() == "one and more\n"
    await session.read(note)
    assert await session.edit(note, "one", "1") == "ok"


@pytest.mark.req("files.edit.stale")
async def test_an_edit_of_another_conversation_is_a_change_too(
    session: FileToolSession, note: Path
) -> None:
    other = session.open_conversation("tg:7")
    await session.read(note)
    await other.read(note)
    await session.edit(note, "one", "1")
    assert "changed since it was read" in await other.expect_refused_edit(note, "two", "2")


@pytest.mark.req("files.edit.refused")
async def test_an_edit_that_changes_nothing_is_refused(
    session: FileToolSession, note: Path
) -> None:
    await session.read(note)
    assert "old_string is empty" in await session.expect_refused_edit(note, "", "x")
    assert "are the same text" in await session.expect_refused_edit(note, "one", "one")
    missing = await session.expect_refusal("edit", path=str(note), old_string="one")
    assert missing.startswith("invalid arguments: ")


@pytest.mark.req("files.edit.refused")
async def test_edit_creates_no_files(session: FileToolSession, tmp_path: Path) -> None:
    answer = await session.expect_refused_edit("new.txt", "a", "b")
    assert answer.startswith(f"there is no file {tmp_path / 'new.txt'}; check the path (bash")
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.req("files.edit.refused")
async def test_a_read_only_file_is_not_edited(
    session: FileToolSession, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note.chmod(0o444)
    await session.read(note)
    # Root may write regardless of the mode, and tests may run as root.
    monkeypatch.setattr(os, "access", lambda *given, **options: False)
    assert (await session.expect_refused_edit(note, "one", "1")).startswith("permission denied: ")
    assert note.read_text() == "one\ntwo\nthree\n"


@pytest.mark.req("files.edit.not_found")
async def test_for_missing_text_the_nearest_lines_are_shown(
    session: FileToolSession, note: Path
) -> None:
    note.write_text("import os\n\ndef swim(depth: int) -> None:\n    dive(depth)\n    rise()\n")
    await session.read(note)
    answer = await session.expect_refused_edit(
        note, "def swim(deep: int) -> None:\n  dive(depth)", "x"
    )
    assert answer == (
        f"old_string is not in {note}; the nearest is\n"
        "3\tdef swim(depth: int) -> None:\n4\t    dive(depth)"
    )
    answer = await session.expect_refused_edit(note, "0123456789" * 10, "x")
    assert answer.endswith("nothing in it is like that; read it again")


@pytest.mark.req("files.edit.not_found")
@given(st.text(max_size=300), st.text(min_size=1, max_size=100))
def test_the_search_for_the_nearest_lines_always_ends_in_a_message(text: str, old: str) -> None:
    assert describe_nearest_lines(text, old).startswith(
        ("the nearest is\n", "nothing in it is like that")
    )


@pytest.mark.req("files.edit.not_found")
def test_the_search_for_the_nearest_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def ratio(matcher: difflib.SequenceMatcher[str]) -> float:
        nonlocal compared
        compared += 1
        return 0.0

    monkeypatch.setattr(difflib.SequenceMatcher, "ratio", ratio)
    describe_nearest_lines("".join("ab" * 40 + "\n" for _ in range(100_000)), "ba" * 40 + "!")
    assert compared == files.MAX_COMPARISONS


@pytest.mark.req("files.edit.unique")
async def test_for_ambiguous_text_the_line_numbers_are_shown(
    session: FileToolSession, note: Path
) -> None:
    note.write_text("x = 1\ny = 2\nx = 1\n  x = 1 # x = 1\n")
    await session.read(note)
    assert await session.expect_refused_edit(note, "x = 1", "x = 3") == (
        f"old_string is 4 times in {note}, at lines 1, 3, 4, 4; "
        "make it longer, so that it is there once"
    )
    assert note.read_text().count("x = 1") == 4


@pytest.mark.req("files.edit.unique")
def test_a_long_list_of_line_numbers_is_truncated() -> None:
    assert list_match_lines("a\nb\n" * 30, "b\na\n").endswith("36, 38, 40, …")
    assert list_match_lines("a\nb\n" * 3, "a\nb\n") == "1, 3, 5"


@pytest.mark.req("files.edit.crlf")
async def test_a_file_with_crlf_keeps_it_if_the_model_writes_lf(
    session: FileToolSession, note: Path
) -> None:
    note.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await session.read(note)
    assert await session.edit(note, "one\ntwo\n", "1\n2\n2.5\n") == "ok"
    assert note.read_bytes() == b"1\r\n2\r\n2.5\r\nthree\r\n"
    assert await session.edit(note, "2\r\n2.5", "2") == "ok"
    assert note.read_bytes() == b"1\r\n2\r\nthree\r\n"
    assert "nothing to change" in await session.expect_refused_edit(note, "1\n2", "1\r\n2")
    assert "is not in" in await session.expect_refused_edit(note, "7\n8", "7\r\n8")


@pytest.mark.req("files.read.text")
async def test_an_edit_leaves_the_byte_order_mark(session: FileToolSession, note: Path) -> None:
    note.write_bytes(b"\xef\xbb\xbfone\n")
    await session.read(note)
    await session.edit(note, "one", "1")
    assert note.read_bytes() == b"\xef\xbb\xbf1\n"


@pytest.mark.req("files.edit.atomic")
async def test_the_mode_is_kept_and_no_temporary_file_is_left(
    session: FileToolSession, note: Path, tmp_path: Path
) -> None:
    note.chmod(0o754)
    await session.read(note)
    await session.edit(note, "one", "1")
    assert stat.S_IMODE(note.stat().st_mode) == 0o754
    assert list(tmp_path.iterdir()) == [note]


@pytest.mark.req("files.edit.links")
async def test_editing_a_link_edits_its_target(
    session: FileToolSession, note: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to("note.txt")
    await session.read(link)
    await session.edit(link, "one", "1")
    assert link.is_symlink()
    assert note.read_text() == "1\ntwo\nthree\n"


@pytest.mark.req("files.edit.concurrent")
async def test_no_concurrent_edit_is_lost(
    session: FileToolSession, note: Path, tmp_path: Path
) -> None:
    note.write_text("".join(f"<{number}>\n" for number in range(20)))
    (tmp_path / "link").symlink_to("note.txt")
    await session.read(note)
    answers = await asyncio.gather(
        *(session.edit(("note.txt", "link")[n % 2], f"<{n}>", f"[{n}]") for n in range(20))
    )
    assert answers == ["ok"] * 20
    assert note.read_text() == "".join(f"[{number}]\n" for number in range(20))
    assert session.hook.statistics()["locks"] == 0


@pytest.mark.req("files.edit.concurrent")
async def test_after_concurrent_edits_from_two_conversations_one_must_read_again(
    session: FileToolSession, note: Path
) -> None:
    other = session.open_conversation("tg:7")
    await session.read(note)
    await other.read(note)
    results = await asyncio.gather(
        session.edit(note, "one", "1"), other.edit(note, "two", "2"), return_exceptions=True
    )
    assert sorted(map(str, results)) == [
        f"{note} changed since it was read; read it again, then edit it",
        "ok",
    ]
    assert note.read_text() in ("1\ntwo\nthree\n", "one\n2\nthree\n")


class BlockedReplacement:
    """A replacement that blocks in its thread until the test continues it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()
        replace = PinnedFile.replace

        def stopping(place: PinnedFile, data: bytes, before: os.stat_result) -> object:
            self._reached.set()
            assert self._opened.wait(PATIENCE)
            return replace(place, data, before)

        monkeypatch.setattr(PinnedFile, "replace", stopping)

    async def wait_until_reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, PATIENCE)

    def release(self) -> None:
        self._opened.set()


@pytest.mark.req("files.edit.cancelled")
async def test_an_edit_cancelled_after_it_began_is_finished_and_reported(
    session: FileToolSession, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.read(note)
    hurdle = BlockedReplacement(monkeypatch)
    first = asyncio.ensure_future(session.edit(note, "one", "1"))
    await hurdle.wait_until_reached()
    second = asyncio.ensure_future(session.edit(note, "two", "2"))
    first.cancel()
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert not first.done()
    hurdle.release()
    assert await first == "ok"
    assert await second == "ok"
    assert note.read_text() == "1\n2\nthree\n"


@pytest.mark.req("files.edit.cancelled")
async def test_an_edit_cancelled_while_it_waits_for_another_did_not_happen(
    session: FileToolSession, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.read(note)
    hurdle = BlockedReplacement(monkeypatch)
    first = asyncio.ensure_future(session.edit(note, "one", "1"))
    await hurdle.wait_until_reached()
    second = asyncio.ensure_future(session.edit(note, "two", "2"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    hurdle.release()
    assert await first == "ok"
    assert note.read_text() == "1\ntwo\nthree\n"


TEXT = st.text(st.sampled_from("ab \n\r\té€🦀\ufeff\0"), max_size=60)


@pytest.mark.req("files.edit.replaces")
@given(TEXT, st.data())
def test_read_and_edit_are_a_replacement_of_text(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    old = text[start : data.draw(st.integers(start, len(text)))] or "absent"
    new = data.draw(TEXT)
    # Texts that start in the middle of a CRLF have their own test.
    assume(not (old.startswith("\n") and "\r" + old in text))

    async def go(path: Path) -> str:
        session = FileToolSession(path.parent)
        await session.read(path)
        try:
            return await session.edit(path, old, new)
        except ToolError as error:
            return str(error)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "note.txt"
        path.write_bytes(text.encode())
        answer = asyncio.run(go(path))
        after = path.read_bytes().decode()
    if text.count(old) == 1 and old != new:
        assert answer == "ok"
        assert after == text.replace(old, new)
    else:
        assert answer != "ok"
        assert after == text


@pytest.mark.req("files.edit.crlf")
@given(st.text("ab\n", min_size=1, max_size=20), st.text("ab\n", max_size=5))
def test_an_edit_with_crlf_equals_the_edit_without(text: str, new: str) -> None:
    old = text[: len(text) // 2 + 1]
    assume(text.count(old) == 1 and "\n" in old and old != new)
    crlf = replace_only_match(text.replace("\n", "\r\n"), old, new, Path("x"))
    assert crlf == text.replace(old, new).replace("\n", "\r\n")


# ── Access and memory ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.roots.confined")
async def test_a_confined_agent_reads_and_edits_inside_and_nothing_outside(
    tmp_path: Path, note: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "in.txt").write_text("in\n")
    (root / "out").symlink_to(note)
    (root / "up").symlink_to("..")
    session = FileToolSession(root, roots=[str(root)])
    assert await session.read("in.txt") == "1\tin\n\n--- 1 total lines ---"
    assert await session.edit("in.txt", "in", "IN") == "ok"
    for path in ("../note.txt", str(note), "out", "up/note.txt", "/etc/passwd", "/no/such/file"):
        assert (await session.expect_refusal("read", path=path)).startswith("permission denied: ")
        assert (await session.expect_refused_edit(path, "one", "1")).startswith(
            "permission denied: "
        )
    assert note.read_text() == "one\ntwo\nthree\n"


@pytest.mark.req("files.roots.confined")
async def test_files_read_before_the_roots_were_set_cannot_be_edited(
    tmp_path: Path, session: FileToolSession, note: Path
) -> None:
    await session.read(note)
    session.register([str(tmp_path / "elsewhere")])
    assert (await session.expect_refused_edit(note, "one", "1")).startswith("permission denied: ")


@pytest.mark.req("files.roots.setting")
async def test_an_agent_with_invalid_roots_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="is relative"):
        FileToolSession(tmp_path, roots=["notes"])


@pytest.mark.req("files.roots.gone")
async def test_a_run_that_outlives_its_agent_has_no_file_access(
    session: FileToolSession, note: Path
) -> None:
    session.hook.on_unregister_agent("crab")
    assert (await session.expect_refusal("read", path=str(note))).startswith("permission denied: ")


@pytest.mark.req("files.remembered.bounded")
async def test_the_oldest_remembered_reads_are_dropped_first(
    session: FileToolSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATHS", 2)
    monkeypatch.setattr(files, "CONVERSATIONS", 2)
    for name in "abc":
        (tmp_path / name).write_text("x\n")
    for name in ("a", "b", "a", "c"):
        await session.read(name)
    assert "was not read" in await session.expect_refused_edit("b", "x", "y")
    assert await session.edit("a", "x", "y") == "ok"
    for sender in ("s1", "s2"):
        await session.open_conversation(sender).read("c")
    assert "was not read" in await session.expect_refused_edit("c", "x", "y")
    assert session.hook.statistics() == {"conversations": 2, "files": 2, "locks": 0}


@pytest.mark.req("files.schema")
def test_the_schemas_describe_the_parameters() -> None:
    schemas = {tool.name: tool.parameters for tool in FilesHook().schema()}
    assert schemas["read"]["required"] == ["path"]
    offset = schemas["read"]["properties"]["offset"]
    assert offset["type"] == "integer"
    assert schemas["edit"]["required"] == ["path", "old_string", "new_string"]
    assert set(schemas["edit"]["properties"]) == {"path", "old_string", "new_string"}
