"""crabtalk conversations: list, show, export and remove conversations."""

import json
from pathlib import Path

import pytest

from crabtalk.protocol import NotFoundError, Server, wire
from tests.cli.canned_daemon import serve_daemon
from tests.cli.cli_process import run_at_terminal, run_crabtalk, strip_colours
from tests.daemon.in_process_daemon import run_daemon, script_tool_calls

HOSTILE = "<script>alert(1)</script> \x1b[2J"


@pytest.mark.req("cli.conversations.list")
async def test_conversations_are_listed_latest_first_and_filtered(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "!say one", sender="bo")
        await client.send(
            "crab", script_tool_calls([("set_title", {"title": "Tide\x1b[2J tables"})])
        )
        await client.send("twin", "!say three")
        where = ("conversations", "list", "--home", daemon.home)
        assert (await run_crabtalk(*where)).output == (
            "twin  user  2 messages  Today  (untitled)\n"
            "crab  user  4 messages  Today  Tide\\x1b[2J tables\n"
            "crab  bo    2 messages  Today  (untitled)\n"
        )
        narrow = (await run_crabtalk(*where, "--agent", "crab", "--sender", "bo", "--json")).output
        (only,) = json.loads(narrow)["conversations"]
        assert (only["agent"], only["sender"], only["message_count"]) == ("crab", "bo", 2)
        assert (await run_crabtalk(*where, "--sender", "ann")).err == "there are none\n"

        active = (await run_crabtalk(*where, "--active", "--agent", "twin")).output
        assert active == "twin  user  2 messages  (untitled)\n"


@pytest.mark.req("cli.conversations.list")
async def test_a_conversation_not_in_memory_is_not_active(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "!say one")
    async with run_daemon(tmp_path) as daemon:
        where = ("conversations", "list", "--home", daemon.home)
        assert (await run_crabtalk(*where, "--active")).err == "there are none\n"
        assert (await run_crabtalk(*where)).output


@pytest.mark.req("cli.conversations.show")
async def test_messages_are_shown_with_their_speakers(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "!say first", sender="bo")
        await client.send("crab", script_tool_calls([("recall", {"query": "x"})]), sender="bo")
        await client.send("crab", "!say third", sender="bo", guest="twin")
        where = ("conversations", "show", "crab", "--home", daemon.home, "--sender", "bo")
        blocks = (await run_crabtalk(*where)).output.split("\n\n")
        heads = [block.partition(" · ")[0] for block in blocks]
        assert heads == ["bo", "crab", "bo", "crab", "tool", "crab", "bo", "twin"]
        assert blocks[1].splitlines()[1:] == ["first"]
        assert blocks[3].splitlines()[1:] == ['→ recall {"query": "x"}']

        last = await run_crabtalk(*where, "--last", "1")
        assert last.err == "7 before these; --all shows them\n"
        assert last.out.splitlines()[1:] == ["third"]

        shown = json.loads((await run_crabtalk(*where, "--last", "2", "--json")).output)
        assert (shown["total"], [each["id"] for each in shown["messages"]]) == (8, [6, 7])
        assert shown["messages"][1]["agent"] == "twin"
        asked = await run_crabtalk("--sender", "bo", "conversations", "show", "crab", *where[3:5])
        assert asked.output.startswith("bo · ")


@pytest.mark.req("cli.terminal.safe")
async def test_messages_are_escaped_at_a_terminal_and_unchanged_in_a_pipe(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", HOSTILE)
        where = ("conversations", "show", "crab", "--home", daemon.home)
        assert HOSTILE in (await run_crabtalk(*where)).output
        code, screen = await run_at_terminal(*where)
        assert code == 0
        assert "\\x1b[2J" in screen
        assert "\x1b[2J" not in screen
        assert "\x1b[1mcrab" in screen
        _, plain = await run_at_terminal(*where, NO_COLOR="1")
        assert plain == strip_colours(screen)


class PagedConversationDaemon(Server):
    """A conversation of five messages, two at a time."""

    def __init__(self) -> None:
        self.requested_offsets: list[int] = []

    async def list_messages(self, request: wire.ListMessagesMsg) -> wire.MessagePage:
        if request.agent != "crab":
            raise NotFoundError("crab only")
        if request.limit != 1:
            self.requested_offsets.append(request.offset)
        rest = range(request.offset, 5)[: min(2, request.limit)]
        page = wire.MessagePage(
            messages=[wire.ConversationMessage(role="user", content=f"m{n}", id=n) for n in rest],
            total=5,
        )
        if rest and rest[-1] < 4:
            page.next_offset = rest[-1] + 1
        return page

    async def list_conversations(self, request: wire.ListConversationsMsg) -> wire.ConversationList:
        return wire.ConversationList(
            conversations=[wire.ConversationInfo(agent="crab", sender="user", message_count=5)]
        )


@pytest.mark.req("cli.conversations.show")
async def test_only_the_needed_pages_are_requested(home: Path) -> None:
    peer = PagedConversationDaemon()
    async with serve_daemon(peer, home):
        where = ("conversations", "show", "crab", "--home", home, "--json")
        shown = json.loads((await run_crabtalk(*where, "--last", "3")).output)
        assert [each["content"] for each in shown["messages"]] == ["m2", "m3", "m4"]
        assert peer.requested_offsets == [2, 4]
        shown = json.loads((await run_crabtalk(*where, "--all")).output)
        assert len(shown["messages"]) == 5
        exported = await run_crabtalk("conversations", "export", "crab", "--home", home, "--json")
        assert [m["content"] for m in json.loads(exported.output)["messages"]] == [
            f"m{n}" for n in range(5)
        ]


@pytest.mark.req("cli.conversations.export")
async def test_a_conversation_is_exported_in_three_formats(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", f"!say {HOSTILE}")
        words = ("conversations", "export", "crab", "--home", daemon.home)
        assert "heard" not in (markdown := (await run_crabtalk(*words)).output)
        assert markdown.startswith("# ")
        document = json.loads((await run_crabtalk(*words, "--as", "json")).output)
        assert [each["role"] for each in document["messages"]] == ["user", "assistant"]
        assert document["messages"][1]["content"] == HOSTILE

        file = tmp_path / "crab.html"
        outcome = await run_crabtalk(*words, "--as", "html", "-o", file)
        assert (outcome.code, outcome.out, outcome.err) == (
            0,
            "",
            f"2 messages written to {file}\n",
        )
        page = file.read_text()
        assert "<html" in page
        assert "<script>alert" not in page

        outcome = await run_crabtalk(*words, "-o", file, "--json")
        assert json.loads(outcome.output) == {"file": str(file), "messages": 2}
        assert file.read_text() == markdown
        outcome = await run_crabtalk(*words, "-o", tmp_path / "no" / "file.md")
        assert "No such file or directory" in outcome.error


@pytest.mark.req("cli.conversations.rm")
@pytest.mark.req("cli.no_prompt")
async def test_a_conversation_is_removed_after_a_confirmation(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "!say one", sender="bo")
        await client.send("crab", "!say one")
        words = ("conversations", "rm", "crab", "--home", daemon.home)
        assert (await run_crabtalk(*words)).error.endswith("say --yes")
        code, screen = await run_at_terminal(*words, typed="n\n", when="[y/N]")
        assert code == 1
        assert "Remove the conversation of crab and user, 2 messages? [y/N]" in screen
        assert len((await client.list_conversations()).conversations) == 2
        outcome = await run_crabtalk(*words, "--yes")
        assert (outcome.code, outcome.err) == (0, "removed what crab and user said\n")
        (left,) = (await client.list_conversations()).conversations
        assert left.sender == "bo"


@pytest.mark.parametrize("verb", ["show", "export", "rm"])
async def test_a_missing_conversation_gives_one_error(verb: str, tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "!say one", sender="bo")
        outcome = await run_crabtalk("conversations", verb, "crab", "--home", daemon.home)
        assert outcome.error.startswith("crab has had no conversation with user")
        assert outcome.error.endswith("; `crabtalk conversations list` has all there are")
