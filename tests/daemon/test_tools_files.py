"""The tools read and edit through the socket: their results, and the files afterwards."""

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client
from tests.daemon.in_process_daemon import (
    ToolCalls,
    list_request_messages,
    read_conversation,
    run_daemon,
    run_tool_calls,
    script_tool_calls,
)

# The result does not depend on the event loop.
pytestmark = pytest.mark.one_loop

CallSpec = tuple[str, dict[str, Any]]
CONFINED = 'prompt = "You are crab."\n[hooks.files]\nroots = ["{root}"]\n'


def make_read_call(path: Path | str, **more: int) -> CallSpec:
    return "read", {"path": str(path), **more}


def make_edit_call(path: Path | str, old: str, new: str) -> CallSpec:
    return "edit", {"path": str(path), "old_string": old, "new_string": new}


async def call_one_by_one(
    client: Client, *calls: CallSpec, **options: Any
) -> list[tuple[bool, str]]:
    """One call per step, in one turn. Returns whether each is an error, and its output."""
    steps: list[ToolCalls] = [[call] for call in calls]
    results = await run_tool_calls(client, "crab", *steps, **options)
    return [(result.is_error, result.output) for result in results]


def expect_last_error(results: list[tuple[bool, str]]) -> str:
    """The output of the last call, which failed; those before it succeeded."""
    assert [is_error for is_error, _ in results] == [False] * (len(results) - 1) + [True], results
    return results[-1][1]


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("alpha\nbeta\ngamma\n")
    return path


# ── read ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.read.format")
async def test_the_model_gets_numbered_lines_and_their_count(tmp_path: Path, note: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        whole, part, past = await call_one_by_one(
            client, make_read_call(note), make_read_call("note.txt", offset=2, limit=1),
            make_read_call(note, offset=9), cwd=str(tmp_path),
        )  # fmt: skip
        assert whole == (False, "1\talpha\n2\tbeta\n3\tgamma\n\n--- 3 total lines ---")
        assert part == (False, "2\tbeta\n\n--- 3 total lines (showing lines 2-2) ---")
        assert past == (False, f"offset 9 is past the end: {note} has 3 lines")
        outputs = [
            text
            for role, text in list_request_messages(daemon.model.requests[-1])
            if role == "tool"
        ]
        assert outputs == [whole[1], part[1], past[1]]


@pytest.mark.req("files.read.refused")
@pytest.mark.req("files.read.special")
async def test_unreadable_paths_are_refused_at_once_with_a_next_step(
    tmp_path: Path, note: Path
) -> None:
    """In one step, concurrently: a call that blocked would delay them all."""
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
        calls = [make_read_call("" if path == Path() else path) for path in expected]
        async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
            results = await run_tool_calls(client, "crab", calls)
    for result, (path, sentence) in zip(results, expected.items(), strict=True):
        assert result.is_error, path
        assert sentence in result.output, path
        assert "; " in result.output, "says what to do next"


@pytest.mark.req("files.size")
async def test_sixty_megabytes_of_text_are_neither_read_nor_edited(tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_bytes(b"a line of text of sixty bytes, counting the end of the line\n" * 10**6)
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        results = await call_one_by_one(
            client,
            make_read_call(big),
            make_read_call(big, offset=1, limit=1),
            make_edit_call(big, "a", "b"),
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
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        results = await call_one_by_one(
            client,
            make_read_call(note),
            make_edit_call(note, "beta", "BETA"),
            make_edit_call(note, "gamma\n", ""),
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
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        results = await call_one_by_one(
            client, make_read_call(note), make_edit_call(note, "one\ntwo\n", "1\n2\n")
        )
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
async def test_an_ambiguous_or_invalid_edit_changes_nothing(
    tmp_path: Path, note: Path, old: str, new: str, sentence: str
) -> None:
    before = note.read_bytes()
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        error = expect_last_error(
            await call_one_by_one(client, make_read_call(note), make_edit_call(note, old, new))
        )
    assert sentence.format(note=note) in error
    assert note.read_bytes() == before


@pytest.mark.req("hooks.tool.arguments")
async def test_invalid_arguments_are_reported(tmp_path: Path, note: Path) -> None:
    calls: ToolCalls = [
        ("read", {}),
        ("read", {"path": 1}),
        ("read", {"path": str(note), "offset": "2"}),
        ("edit", {"path": str(note), "old_string": "beta"}),
        ("edit", "{"),
    ]
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        for result in await run_tool_calls(client, "crab", calls):
            assert result.is_error
            assert result.output.startswith("invalid arguments: ")
    assert note.read_text() == "alpha\nbeta\ngamma\n"


# ── Reading before editing ──────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.edit.read_first")
async def test_a_read_in_another_conversation_does_not_count(tmp_path: Path, note: Path) -> None:
    agents = {name: f'prompt = "You are {name}."\n' for name in ("crab", "twin")}
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        await run_tool_calls(client, "crab", [make_read_call(note)], sender="user~anna")
        await run_tool_calls(client, "twin", [make_read_call(note)])
        refused = await call_one_by_one(client, make_edit_call(note, "beta", "x"))
        assert "was not read in this conversation; read it first" in expect_last_error(refused)
        past_the_end = await call_one_by_one(
            client, make_read_call(note, offset=9), make_edit_call(note, "beta", "x")
        )
        assert "was not read in this conversation" in expect_last_error(past_the_end)
        assert note.read_text() == "alpha\nbeta\ngamma\n"
        assert await call_one_by_one(
            client, make_edit_call(note, "beta", "x"), sender="user~anna"
        ) == [(False, "ok")]


@pytest.mark.req("files.edit.stale")
async def test_a_file_that_changed_must_be_read_again(tmp_path: Path, note: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_one_by_one(client, make_read_call(note))
        note.write_text("another program's beta\n")
        error = expect_last_error(await call_one_by_one(client, make_edit_call(note, "beta", "x")))
        assert "changed since it was read; read it again" in error
        assert note.read_text() == "another program's beta\n"
        results = await call_one_by_one(
            client, make_read_call(note), make_edit_call(note, "beta", "x")
        )
        assert results[1] == (False, "ok")


@pytest.mark.req("files.edit.read_first")
async def test_a_send_reads_and_edits_like_a_stream(tmp_path: Path, note: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send(
            "crab", script_tool_calls([make_edit_call("note.txt", "beta", "x")]), cwd=str(tmp_path)
        )
        assert note.read_text() == "alpha\nbeta\ngamma\n"
        script = script_tool_calls(
            [make_read_call("note.txt")], [make_edit_call("note.txt", "beta", "x")]
        )
        await client.send("crab", script, cwd=str(tmp_path))
        assert [text for role, text in await read_conversation(client, "crab") if role == "tool"][
            -1
        ] == "ok"
    assert note.read_text() == "alpha\nx\ngamma\n"


@pytest.mark.req("files.edit.read_first")
@pytest.mark.req("delegate.cwd")
async def test_a_delegated_run_can_edit_only_files_it_has_read_itself(
    tmp_path: Path, note: Path
) -> None:
    blind = {"message": script_tool_calls([make_edit_call(note, "alpha", "blind")])}
    able = {
        "message": script_tool_calls(
            [make_read_call("note.txt")], [make_edit_call("note.txt", "beta", "able")]
        ),
        "cwd": ".",
    }
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        steps: list[ToolCalls] = [
            [make_read_call(note)],
            [("delegate", {"tasks": [blind]})],
            [("delegate", {"tasks": [able]})],
        ]
        results = await run_tool_calls(client, "crab", *steps, cwd=str(tmp_path))
        assert [result.is_error for result in results] == [False] * 3
    assert note.read_text() == "alpha\nable\ngamma\n"


# ── Roots ───────────────────────────────────────────────────────────────────────────────────────


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
    paths: list[Path | str] = [
        note,
        "../note.txt",
        "up/note.txt",
        "link",
        "sub/../../note.txt",
        "../missing",
    ]
    paths += [tmp_path / "root-too", "/etc/passwd", "~/x/../../note.txt/../..//etc/passwd"]
    calls = [
        call for path in paths for call in (make_read_call(path), make_edit_call(path, "beta", "x"))
    ]
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        for result in await run_tool_calls(client, "crab", calls, cwd=str(root)):
            assert result.is_error
            assert result.output.startswith("permission denied: "), result.output
            assert "beta" not in result.output
        inside = await call_one_by_one(
            client,
            make_read_call("inside"),
            make_edit_call("up/root/inside", "in", "still in"),
            cwd=str(root),
        )
        assert inside[1] == (False, "ok")
    assert note.read_text() == "alpha\nbeta\ngamma\n"
    assert (root / "inside").read_text() == "still in here\n"


@pytest.mark.req("files.roots.confined")
async def test_a_worker_stays_within_its_callers_roots(tmp_path: Path, note: Path) -> None:
    (root := tmp_path / "root").mkdir()
    agents = {"crab": CONFINED.replace("{root}", str(root))}
    tasks: list[dict[str, Any]] = [
        {"message": script_tool_calls([make_read_call(note)])},
        {
            "message": script_tool_calls([make_read_call(note)]),
            "system_prompt": "You may go anywhere.",
        },
        {"message": script_tool_calls([make_read_call("../note.txt")]), "cwd": str(root)},
    ]
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        await run_tool_calls(client, "crab", [("delegate", {"tasks": tasks})], cwd=str(root))
        answers = [
            text
            for request in daemon.model.requests
            for role, text in list_request_messages(request)[-1:]
            if role == "tool" and not text.startswith("[")
        ]
    assert len(answers) == 3
    assert all(text.startswith("permission denied: ") for text in answers)
