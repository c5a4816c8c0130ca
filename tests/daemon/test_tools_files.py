"""read and edit through the socket: what an agent is answered, and what the files are then."""

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client
from tests.daemon.served import ToolCalls, called, calling, messages, served, shown

# What it shows is decided above the loop.
pytestmark = pytest.mark.one_loop

Call = tuple[str, dict[str, Any]]
CONFINED = 'prompt = "You are crab."\n[hooks.files]\nroots = ["{root}"]\n'


def read(path: Path | str, **more: int) -> Call:
    return "read", {"path": str(path), **more}


def edit(path: Path | str, old: str, new: str) -> Call:
    return "edit", {"path": str(path), "old_string": old, "new_string": new}


async def one_by_one(client: Client, *calls: Call, **options: Any) -> list[tuple[bool, str]]:
    """A call a step, in one turn: whether each is an error, and what it says."""
    steps: list[ToolCalls] = [[call] for call in calls]
    results = await called(client, "crab", *steps, **options)
    return [(result.is_error, result.output) for result in results]


def one_error(results: list[tuple[bool, str]]) -> str:
    """What the last one says; those before it worked."""
    assert [is_error for is_error, _ in results] == [False] * (len(results) - 1) + [True], results
    return results[-1][1]


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("alpha\nbeta\ngamma\n")
    return path


# ── read ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.read.format")
async def test_the_model_is_shown_numbered_lines_and_how_many_there_are(
    tmp_path: Path, note: Path
) -> None:
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        whole, part, past = await one_by_one(
            client, read(note), read("note.txt", offset=2, limit=1), read(note, offset=9),
            cwd=str(tmp_path),
        )  # fmt: skip
        assert whole == (False, "1\talpha\n2\tbeta\n3\tgamma\n\n--- 3 total lines ---")
        assert part == (False, "2\tbeta\n\n--- 3 total lines (showing lines 2-2) ---")
        assert past == (False, f"offset 9 is past the end: {note} has 3 lines")
        told = [text for role, text in shown(daemon.model.requests[-1]) if role == "tool"]
        assert told == [whole[1], part[1], past[1]]


@pytest.mark.req("files.read.refused")
@pytest.mark.req("files.read.special")
async def test_what_cannot_be_read_is_refused_with_a_way_on_and_at_once(
    tmp_path: Path, note: Path
) -> None:
    """In one step, side by side: one that waited would hold up them all."""
    (tmp_path / "latin").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "late").write_bytes(b"x" * 2**20 + b"\xff")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "round").symlink_to("round")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        expected = {
            tmp_path / "missing": "there is no file ",
            note / "below": "there is no file ",
            tmp_path / "nowhere": "there is no file ",
            tmp_path / "round": " is a link that leads to no file",
            tmp_path / "latin": " is not UTF-8",
            tmp_path / "late": " is not UTF-8",
            tmp_path: " is a directory; name a file in it",
            tmp_path / "fifo": " is not a regular file but a device, pipe or socket",
            tmp_path / "socket": " is not a regular file but a device, pipe or socket",
            Path("/dev/zero"): " is not a regular file but a device, pipe or socket",
            Path(): "invalid arguments: path is empty",
        }
        calls = [read("" if path == Path() else path) for path in expected]
        async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
            results = await called(client, "crab", calls)
    for result, (path, sentence) in zip(results, expected.items(), strict=True):
        assert result.is_error, path
        assert sentence in result.output, path
        assert "; " in result.output, "says what to do next"


@pytest.mark.req("files.size")
async def test_sixty_megabytes_of_text_are_neither_read_nor_edited(tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_bytes(b"a line of text of sixty bytes, counting the end of the line\n" * 10**6)
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        results = await one_by_one(
            client, read(big), read(big, offset=1, limit=1), edit(big, "a", "b")
        )
    for is_error, text in results:
        assert is_error
        assert "is too large: more than 52428800 bytes; use bash" in text


# ── edit ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.edit.replaces")
@pytest.mark.req("files.edit.atomic")
async def test_an_edit_changes_one_place_and_keeps_the_files_mode(
    tmp_path: Path, note: Path
) -> None:
    note.chmod(0o751)
    before = sorted(path.name for path in tmp_path.iterdir())
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        results = await one_by_one(
            client, read(note), edit(note, "beta", "BETA"), edit(note, "gamma\n", "")
        )
        assert results[1:] == [(False, "ok")] * 2, "an edit counts as having read"
    assert note.read_text() == "alpha\nBETA\n"
    assert stat.S_IMODE(note.stat().st_mode) == 0o751
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "home"])


@pytest.mark.req("files.edit.crlf")
@pytest.mark.req("files.read.text")
async def test_line_ends_and_the_byte_order_mark_stay_as_they_are(
    tmp_path: Path, note: Path
) -> None:
    note.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        results = await one_by_one(client, read(note), edit(note, "one\ntwo\n", "1\n2\n"))
        assert results[0][1].startswith("1\tone")
        assert results[1] == (False, "ok")
    assert note.read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\r\n"


@pytest.mark.req("files.edit.refused")
@pytest.mark.req("files.edit.not_found")
@pytest.mark.req("files.edit.unique")
@pytest.mark.req("hooks.tool.arguments")
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("", "x", "invalid arguments: old_string is empty"),
        ("beta", "beta", "invalid arguments: old_string and new_string are the same text"),
        ("betta", "x", "the nearest is\n2\tbeta"),
        ("a\n", "x", "old_string is 3 times in {note}, at lines 1, 2, 3; make it longer"),
    ],
    ids=["empty", "identical", "not-found", "not-unique"],
)
async def test_an_edit_that_cannot_be_meant_changes_nothing(
    tmp_path: Path, note: Path, old: str, new: str, sentence: str
) -> None:
    before = note.read_bytes()
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        error = one_error(await one_by_one(client, read(note), edit(note, old, new)))
    assert sentence.format(note=note) in error
    assert note.read_bytes() == before


@pytest.mark.req("hooks.tool.arguments")
async def test_arguments_that_do_not_fit_are_said_so(tmp_path: Path, note: Path) -> None:
    calls: ToolCalls = [
        ("read", {}),
        ("read", {"path": 1}),
        ("read", {"path": str(note), "offset": "2"}),
        ("edit", {"path": str(note), "old_string": "beta"}),
        ("edit", "{"),
    ]
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        for result in await called(client, "crab", calls):
            assert result.is_error
            assert result.output.startswith("invalid arguments: ")
    assert note.read_text() == "alpha\nbeta\ngamma\n"


# ── What was read ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.edit.read_first")
async def test_what_another_conversation_read_does_not_count(tmp_path: Path, note: Path) -> None:
    agents = {name: f'prompt = "You are {name}."\n' for name in ("crab", "twin")}
    async with served(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        await called(client, "crab", [read(note)], sender="user~anna")
        await called(client, "twin", [read(note)])
        refused = await one_by_one(client, edit(note, "beta", "x"))
        assert "was not read in this conversation; read it first" in one_error(refused)
        past_the_end = await one_by_one(client, read(note, offset=9), edit(note, "beta", "x"))
        assert "was not read in this conversation" in one_error(past_the_end)
        assert note.read_text() == "alpha\nbeta\ngamma\n"
        assert await one_by_one(client, edit(note, "beta", "x"), sender="user~anna") == [
            (False, "ok")
        ]


@pytest.mark.req("files.edit.stale")
async def test_what_changed_since_must_be_read_again(tmp_path: Path, note: Path) -> None:
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await one_by_one(client, read(note))
        note.write_text("somebody else's beta\n")
        error = one_error(await one_by_one(client, edit(note, "beta", "x")))
        assert "changed since it was read; read it again" in error
        assert note.read_text() == "somebody else's beta\n"
        results = await one_by_one(client, read(note), edit(note, "beta", "x"))
        assert results[1] == (False, "ok")


@pytest.mark.req("files.edit.read_first")
async def test_a_send_reads_and_edits_as_a_stream_does(tmp_path: Path, note: Path) -> None:
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", calling([edit("note.txt", "beta", "x")]), cwd=str(tmp_path))
        assert note.read_text() == "alpha\nbeta\ngamma\n"
        script = calling([read("note.txt")], [edit("note.txt", "beta", "x")])
        await client.send("crab", script, cwd=str(tmp_path))
        assert [text for role, text in await messages(client, "crab") if role == "tool"][-1] == "ok"
    assert note.read_text() == "alpha\nx\ngamma\n"


@pytest.mark.req("files.edit.read_first")
@pytest.mark.req("delegate.cwd")
async def test_a_delegated_run_edits_what_it_has_read_itself(tmp_path: Path, note: Path) -> None:
    blind = {"message": calling([edit(note, "alpha", "blind")])}
    able = {
        "message": calling([read("note.txt")], [edit("note.txt", "beta", "able")]),
        "cwd": ".",
    }
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        steps: list[ToolCalls] = [
            [read(note)],
            [("delegate", {"tasks": [blind]})],
            [("delegate", {"tasks": [able]})],
        ]
        results = await called(client, "crab", *steps, cwd=str(tmp_path))
        assert [result.is_error for result in results] == [False] * 3
    assert note.read_text() == "alpha\nable\ngamma\n"


# ── Where an agent may go ───────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.roots.confined")
@pytest.mark.req("files.roots.links")
async def test_no_path_leads_out_of_an_agents_roots(tmp_path: Path, note: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside").write_text("in here\n")
    (root / "link").symlink_to(note)
    (root / "up").symlink_to("..")
    (tmp_path / "root-too").write_text("no\n")
    agents = {"crab": CONFINED.replace("{root}", str(root))}
    ways_out: list[Path | str] = [
        note,
        "../note.txt",
        "up/note.txt",
        "link",
        "sub/../../note.txt",
        "../missing",
    ]
    ways_out += [tmp_path / "root-too", "/etc/passwd", "~/x/../../note.txt/../..//etc/passwd"]
    calls = [call for way in ways_out for call in (read(way), edit(way, "beta", "x"))]
    async with served(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        for result in await called(client, "crab", calls, cwd=str(root)):
            assert result.is_error
            assert result.output.startswith("permission denied: "), result.output
            assert "beta" not in result.output
        inside = await one_by_one(
            client, read("inside"), edit("up/root/inside", "in", "still in"), cwd=str(root)
        )
        assert inside[1] == (False, "ok")
    assert note.read_text() == "alpha\nbeta\ngamma\n"
    assert (root / "inside").read_text() == "still in here\n"


@pytest.mark.req("files.roots.confined")
async def test_a_worker_stays_within_its_callers_roots(tmp_path: Path, note: Path) -> None:
    (root := tmp_path / "root").mkdir()
    agents = {"crab": CONFINED.replace("{root}", str(root))}
    tasks: list[dict[str, Any]] = [
        {"message": calling([read(note)])},
        {"message": calling([read(note)]), "system_prompt": "You may go anywhere."},
        {"message": calling([read("../note.txt")]), "cwd": str(root)},
    ]
    async with served(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        await called(client, "crab", [("delegate", {"tasks": tasks})], cwd=str(root))
        answers = [
            text
            for request in daemon.model.requests
            for role, text in shown(request)[-1:]
            if role == "tool" and not text.startswith("[")
        ]
    assert len(answers) == 3
    assert all(text.startswith("permission denied: ") for text in answers)
