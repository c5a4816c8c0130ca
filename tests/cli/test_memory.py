"""crabtalk memory works the same on a daemon's memory and on a file."""

import asyncio
import json
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crabtalk.memory import Memory
from crabtalk.protocol import wire
from tests.cli.canned_daemon import CannedDaemon, make_entry, serve_daemon
from tests.cli.cli_process import WARM, run_at_terminal, run_crabtalk, strip_colours
from tests.cli.stored_memory import ENTRIES, in_daemon_and_file, open_stored_memory, write_pages
from tests.forked_programs import PIPE

# ── Reading ────────────────────────────────────────────────────────────────────────────────────


@in_daemon_and_file
@pytest.mark.req("cli.memory.list")
async def test_list_has_the_entries_of_all_pages(tmp_path: Path, where: str) -> None:
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        outcome = await run_crabtalk("memory", "list", *memory.words, TZ="UTC")
        assert outcome.output.splitlines() == [
            "2023-11-14  note     deploy",
            "1970-01-01  note     tides",
            "2023-11-14  archive  crab-user-1",
            "2023-11-14  topic    海",
            "2023-11-14  note     a/b: c",
        ]
        known = json.loads((await run_crabtalk("memory", "list", *memory.words, "--json")).output)
        assert [each["name"] for each in known["entries"]] == [e.name for e in ENTRIES]
        assert known["entries"][0] == {
            "name": "deploy",
            "kind": "note",
            "created_at": "2023-11-14T22:13:21Z",
            "aliases": ["ship", "release"],
        }


@in_daemon_and_file
@pytest.mark.req("cli.memory.list")
async def test_an_empty_memory_is_no_failure(tmp_path: Path, where: str) -> None:
    async with open_stored_memory(where, tmp_path) as memory:
        outcome = await run_crabtalk("memory", "list", *memory.words)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "it remembers nothing yet\n")
        outcome = await run_crabtalk("memory", "list", *memory.words, "--json")
        assert json.loads(outcome.output) == {"entries": []}


@in_daemon_and_file
@pytest.mark.parametrize("name", ["deploy", "release"])
@pytest.mark.req("cli.memory.show")
async def test_show_prints_an_entry_by_name_or_alias(tmp_path: Path, where: str, name: str) -> None:
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        outcome = await run_crabtalk("memory", "show", *memory.words, name)
        assert outcome.output == ENTRIES[0].content
        outcome = await run_crabtalk("memory", "show", *memory.words, name, "--json")
        assert json.loads(outcome.output) == {
            "name": "deploy",
            "kind": "note",
            "created_at": "2023-11-14T22:13:21Z",
            "aliases": ["ship", "release"],
            "content": ENTRIES[0].content,
        }


@in_daemon_and_file
@pytest.mark.req("cli.memory.show")
async def test_an_unknown_name_gives_an_error_that_says_where_the_names_are(
    tmp_path: Path, where: str
) -> None:
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        outcome = await run_crabtalk("memory", "show", *memory.words, "Deploy")
        assert "; `crabtalk memory list" in outcome.error


@in_daemon_and_file
@pytest.mark.req("cli.terminal.safe")
async def test_control_characters_of_an_entry_are_escaped_at_a_terminal(
    tmp_path: Path, where: str
) -> None:
    content = "one\r\ntwo\t\x1b]0;mine\x07\x9b2J three\rfour\u202e"
    async with open_stored_memory(where, tmp_path, make_entry(1, "esc\x1b[2J", content)) as memory:
        outcome = await run_crabtalk("memory", "show", *memory.words, "esc\x1b[2J")
        assert outcome.output == content
        code, screen = await run_at_terminal("memory", "show", *memory.words, "esc\x1b[2J")
        assert code == 0
        assert screen == "one\r\ntwo\t\\x1b]0;mine\\x07\\x9b2J three\\rfour\\u202e\n"
        for verb in ("list", "search"):
            words = ["three"] if verb == "search" else []
            code, screen = await run_at_terminal("memory", verb, *memory.words, *words)
            assert code == 0
            assert "\x1b" not in strip_colours(screen)
            assert "\x9b" not in screen


# ── Searching ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.memory.search")
async def test_search_shows_name_kind_age_and_the_first_lines(tmp_path: Path) -> None:
    now = int(datetime.now(UTC).timestamp())
    content = "\n\nTag the\n  tide tables\n\nand\nship"
    async with open_stored_memory(
        "file", tmp_path, make_entry(1, "deploy", content, created_at=now - 7300)
    ) as memory:
        outcome = await run_crabtalk("memory", "search", *memory.words, "tide", "unheard-of")
        assert outcome.output == "deploy · note, 2 hours old\n  Tag the\n  tide tables\n  and\n"
        outcome = await run_crabtalk("memory", "search", *memory.words, "unheard-of")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "nothing found\n")


@pytest.mark.req("cli.memory.search")
async def test_search_sends_all_words_in_one_query(home: Path) -> None:
    peer = CannedDaemon()
    peer.memory_hits = [
        wire.MemoryHit(
            name="tides",
            kind="archive",
            content="Noon.",
            aliases=["sea"],
            score=1.5,
            created_at="2023-11-14T22:13:21Z",
        )
    ]
    async with serve_daemon(peer, home):
        words = ("memory", "search", "--home", home, "crab", "high", "water")
        outcome = await run_crabtalk(*words, "--limit", "7", "--sender", "tg:1", "--json")
        assert json.loads(outcome.output) == {
            "hits": [
                {
                    "name": "tides",
                    "kind": "archive",
                    "created_at": "2023-11-14T22:13:21Z",
                    "aliases": ["sea"],
                    "content": "Noon.",
                    "score": 1.5,
                }
            ]
        }
        assert peer.requests == [
            wire.SearchMemoryMsg(agent="crab", query="high water", limit=7, sender="tg:1")
        ]


# ── Memory files ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.memory.file")
async def test_a_file_in_use_can_be_read_but_not_loaded(tmp_path: Path) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    async with open_stored_memory("file", tmp_path, *ENTRIES) as memory:
        with Memory.open(tmp_path / "crab.crmem"):
            assert (await run_crabtalk("memory", "list", *memory.words)).output.count("\n") == 5
            before = memory.read_entries()
            outcome = await run_crabtalk("memory", "load", *memory.words, book, "--yes")
            assert outcome.error.startswith(f"{tmp_path}/crab.crmem is in use; ")
            assert memory.read_entries() == before


@pytest.mark.parametrize("content", [b"", b"CRME", b"Dear diary,\n"])
@pytest.mark.parametrize("verb", ["list", "load"])
@pytest.mark.req("cli.memory.file")
async def test_a_file_that_is_no_memory_is_not_changed(
    tmp_path: Path, verb: str, content: bytes
) -> None:
    diary = tmp_path / "diary.txt"
    diary.write_bytes(content)
    book = write_pages(tmp_path / "brain", moon="Full.")
    rest = (book, "--yes") if verb == "load" else ()
    outcome = await run_crabtalk("memory", verb, "--file", diary, *rest)
    assert outcome.error == f"{diary} is no memory; name a .crmem file"
    assert diary.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["brain", "diary.txt"]


@pytest.mark.req("cli.memory.file")
async def test_a_file_that_does_not_exist_is_not_read_as_an_empty_memory(tmp_path: Path) -> None:
    outcome = await run_crabtalk("memory", "list", "--file", tmp_path / "x.crmem")
    assert outcome.error == f"{tmp_path}/x.crmem does not exist; name a .crmem file that does"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("list",), "say whose memory"),
        (("show", "crab"), "NAME is missing"),
        (("search", "crab"), "QUERY is missing"),
        (("show", "crab", "tide", "tables"), "'tables' is a word too many"),
        (("show", "--file", "x.crmem", "tide", "tables"), "'tables' is a word too many"),
        (("list", "--file", "x.crmem", "--sender", "bo"), "leave --sender and --home out"),
        (("search", "crab", "tide", "--limit", "0"), "--limit"),
    ],
)
@pytest.mark.req("cli.exit_codes")
async def test_wrong_arguments_are_a_usage_error(words: tuple[str, ...], error: str) -> None:
    outcome = await run_crabtalk("memory", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert error in outcome.err


# ── The daemon ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", [("list", "owl"), ("show", "owl", "x"), ("load", "owl", "brain")])
async def test_an_unknown_agent_gives_one_error(
    tmp_path: Path, home: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pages(tmp_path / "brain", moon="Full.")
    async with serve_daemon(CannedDaemon(), home):
        outcome = await run_crabtalk("memory", *words, "--home", home)
        assert outcome.error.startswith("no agent is called 'owl'; ")


async def test_an_unknown_kind_of_entry_gives_one_error(home: Path) -> None:
    async with serve_daemon(CannedDaemon(make_entry(1, "x", "", kind="dream")), home):
        outcome = await run_crabtalk("memory", "list", "--home", home, "crab")
        assert "of the kind 'dream'" in outcome.error
        assert outcome.error.endswith("install the same version of crabtalk and crabtalkd")


@pytest.mark.req("cli.memory.sender")
async def test_the_sender_option_reaches_the_daemon(tmp_path: Path, home: Path) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    async with serve_daemon(peer := CannedDaemon(*ENTRIES), home):
        for verb, *rest in (("list",), ("show", "tides"), ("load", str(book), "--yes")):
            where = ("--home", home, "--sender", "tg:1", "crab")
            assert (await run_crabtalk("memory", verb, *where, *rest)).code == 0
        assert {request.sender for request in peer.requests} == {"tg:1"}


class SilentMemoryDaemon(CannedDaemon):
    """Never answers a request for the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def list_memory(self, request: wire.ListMemoryMsg) -> wire.MemoryPage:
        self.reached.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


@pytest.mark.req("cli.exit_codes")
async def test_ctrl_c_ends_a_command_silently_with_130(home: Path) -> None:
    peer = SilentMemoryDaemon()
    async with serve_daemon(peer, home):
        process = WARM.start(*("memory", "list", "--home", home, "crab"), stdout=PIPE, stderr=PIPE)
        await peer.reached.wait()
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"")
        assert process.returncode == 130
