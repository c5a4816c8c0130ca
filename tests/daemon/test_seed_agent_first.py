"""RFC 0135, Agent-First Protocol: its sentences as seen by a client."""

import json
from pathlib import Path

import pytest

from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import (
    collect_events,
    collect_text,
    expect_error_code,
    get_stream_end,
    list_framing_messages,
    list_request_messages,
    read_conversation,
    run_daemon,
    wait_for_event,
)

# The result does not depend on the event loop.
pytestmark = pytest.mark.one_loop

TAGGED = '<from agent="twin">'


# ── Core model ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.identity.pair")
async def test_agent_and_sender_identify_a_conversation_and_the_answer_is_streamed(
    tmp_path: Path,
) -> None:
    """The client names agent and sender; the daemon finds the conversation, runs, streams."""
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        events = await collect_events(client.stream("crab", "!say good day", sender="user"))
        assert isinstance(events[0], wire.StreamStart)
        assert events[0].agent == "crab"
        assert collect_text(events) == "good day"
        assert get_stream_end(events).error == ""
        (conversation,) = (await client.list_conversations()).conversations
        assert (conversation.agent, conversation.sender) == ("crab", "user")


@pytest.mark.req("conv.identity.pair")
async def test_each_agent_has_one_continuous_conversation_per_user(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for agent, sender in [("crab", "bo"), ("crab", "eva"), ("twin", "bo"), ("crab", "bo")]:
            await client.send(agent, f"{sender} to {agent}", sender=sender)
        assert list_request_messages(daemon.model.requests[-1]) == [
            ("system", "You are crab."),
            ("user", "bo to crab"),
            ("assistant", "heard: bo to crab"),
            ("user", "bo to crab"),
        ]
        listed = (await client.list_conversations()).conversations
        assert {(c.agent, c.sender) for c in listed} == {
            ("crab", "bo"),
            ("crab", "eva"),
            ("twin", "bo"),
        }
        assert len(listed) == 3


@pytest.mark.req("wire.no_session_ids")
async def test_a_stream_has_no_session_id(tmp_path: Path) -> None:
    """`start` names the agent; its run id is new for every turn, so it identifies only the turn."""
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        starts = [(await collect_events(client.stream("crab", "hello")))[0] for _ in range(2)]
        fields = {field.name for start in starts for field, _ in start.ListFields()}
        assert fields == {"agent", "run_id"}  # and its mode, where one is set
        assert starts[0] != starts[1]


@pytest.mark.req("conv.outlives.connection")
async def test_a_client_without_state_finds_the_conversation_by_the_pair(
    tmp_path: Path,
) -> None:
    """With session ids, a client that lost its id would have lost the conversation."""
    async with run_daemon(tmp_path) as daemon:
        async with daemon.client() as client:
            await client.send("crab", "remember the reef", sender="bo")
        async with daemon.client() as another:
            await another.send("crab", "what was it?", sender="bo")
        assert ("user", "remember the reef") in list_request_messages(daemon.model.requests[-1])


@pytest.mark.req("conv.outlives.connection")
async def test_connections_are_ephemeral_and_conversations_persist(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        async with daemon.client() as client:
            await client.send("crab", "hello")
        async with daemon.client() as client:
            (active,) = (await client.list_active_conversations()).conversations
            assert active.message_count == 2
            assert await read_conversation(client, "crab") == [
                ("user", "hello"),
                ("assistant", "heard: hello"),
            ]


# ── Protocol changes ───────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.addressing.pair")
async def test_kill_and_compact_name_a_conversation_by_agent_and_sender(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary="They met.") as daemon, daemon.client() as client:
        running = client.stream("crab", "!say so far\n!hang", sender="bo")
        await wait_for_event(running, wire.StreamChunk)
        assert not await client.kill("crab", sender="eva")
        assert await client.kill("crab", sender="bo")
        assert (
            get_stream_end(await collect_events(running)).stop_reason == wire.STOP_REASON_CANCELLED
        )
        assert await expect_error_code(client.compact("crab", sender="eva")) == 404
        assert await client.compact("crab", sender="bo") == "They met."


@pytest.mark.req("wire.no_session_ids")
async def test_a_session_number_from_an_older_client_is_ignored(tmp_path: Path) -> None:
    """Field 3 of a turn was the session; now only the pair counts."""
    async with run_daemon(tmp_path) as daemon:
        peer = await daemon.connect_raw()
        for session in (b"\x18\x01", b"\x18\x63"):
            plain = wire.SendMsg(agent="crab", content="hello").SerializeToString()
            peer.send(wire.ClientMessage(send=wire.SendMsg.FromString(plain + session)))
            assert (await peer.expect()).response.content == "heard: hello"
        await peer.close()
        assert len(daemon.log_paths) == 1
        assert len(list_request_messages(daemon.model.requests[-1])) == 4


# ── Guest turns ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("guest.runs_on_primarys_history")
async def test_a_guest_runs_against_the_primarys_history_with_its_own_prompt_and_no_tools(
    tmp_path: Path,
) -> None:
    """The daemon finds the primary's conversation, adds the user's message, and runs the guest."""

    async def look(call: object) -> str:
        return "waves"

    async with run_daemon(tmp_path, tools={"look": look}) as daemon, daemon.client() as client:
        await client.send("twin", "hello twin")
        await collect_events(client.stream("twin", "question", guest="crab"))
        first, guests = daemon.model.requests
        assert list_request_messages(guests)[0] == ("system", "You are crab.")
        assert list_request_messages(guests)[1:3] == [
            ("user", "hello twin"),
            ("assistant", "heard: hello twin"),
        ]
        assert list_request_messages(guests)[-1] == ("user", "question")
        assert "tools" in first
        assert "tools" not in guests


@pytest.mark.req("guest.framing.guest")
async def test_guest_framing_says_that_the_guest_joins_and_what_the_tags_mean(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "question", guest="twin")
        (framing,) = list_framing_messages(daemon.model.requests[-1])
        assert "joining this conversation as a guest" in framing
        assert '<from agent="NAME">' in framing


@pytest.mark.req("guest.attribution")
async def test_a_guests_response_is_tagged_with_its_name_and_appended(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await collect_events(client.stream("crab", "!say hi from me", guest="twin"))
        question, answer = daemon.read_messages()
        assert question == {"role": "user", "text": "!say hi from me"}
        assert answer == {"role": "assistant", "text": "hi from me", "agent": "twin"}


@pytest.mark.req("guest.first_class")
async def test_a_guests_answer_is_its_own_message_and_not_a_tool_result(tmp_path: Path) -> None:
    """A first-class message: no delegation, no tool result, no paraphrase."""
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        events = await collect_events(
            client.stream("crab", "!say exactly  these words", guest="twin")
        )
        assert collect_text(events) == "exactly  these words"
        page = await client.list_messages("crab")
        assert [(m.role, m.content, m.agent) for m in page.messages] == [
            ("user", "!say exactly  these words", ""),
            ("assistant", "exactly  these words", "twin"),
        ]
        assert len(daemon.model.requests) == 1


@pytest.mark.req("guest.without_compaction")
async def test_a_guest_sees_the_history_without_a_compaction(
    tmp_path: Path,
) -> None:
    """Clients used to compact and hand over at a mention; now the daemon does this."""
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "the reef is deep")
        await client.send("crab", "what do you say?", guest="twin")
        assert ("user", "the reef is deep") in list_request_messages(daemon.model.requests[-1])
        assert [line for line in daemon.read_log() if line["kind"] == "compact"] == []


@pytest.mark.req("guest.send")
async def test_send_accepts_a_guest_too(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        answer = await client.send("crab", "!say here", guest="twin")
        assert (answer.agent, answer.content) == ("twin", "here")
        assert list_request_messages(daemon.model.requests[0])[0] == ("system", "You are twin.")
        assert daemon.read_messages()[-1]["agent"] == "twin"


# ── Bidirectional framing ──────────────────────────────────────────────────────────────────────


@pytest.mark.req("guest.framing.primary")
async def test_the_primary_gets_framing_once_there_are_messages_of_guests(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "alone")
        await client.send("crab", "with a guest", guest="twin")
        await client.send("crab", "and you?")
        alone, _, after = daemon.model.requests
        assert list_framing_messages(alone) == []
        (framing,) = list_framing_messages(after)
        assert "guests" in framing
        assert "answering as yourself" in framing


@pytest.mark.req("guest.framing.fresh")
async def test_framing_is_built_for_each_run_and_does_not_accumulate(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for _ in range(3):
            await client.send("crab", "guest, speak", guest="twin")
            await client.send("crab", "crab, speak")
        assert [len(list_framing_messages(request)) for request in daemon.model.requests] == [1] * 6


# ── Message attribution ────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.attribution")
async def test_the_primarys_messages_carry_no_name_not_even_an_empty_one(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        assert all("agent" not in message for message in daemon.read_messages())
        page = await client.list_messages("crab")
        assert not any(message.HasField("agent") for message in page.messages)


@pytest.mark.req("guest.tagging")
async def test_every_agent_sees_the_names_of_guests(tmp_path: Path) -> None:
    """A guest's message is tagged with its name, for the primary and for other guests."""
    agents = {name: f'prompt = "You are {name}."\n' for name in ("crab", "twin", "owl")}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        await client.send("crab", "first", guest="twin")
        await client.send("crab", "second", guest="owl")
        await client.send("crab", "third")
        _, owls, crabs = daemon.model.requests
        twins_words = ("assistant", f"{TAGGED}\nheard: first\n</from>")
        assert twins_words in list_request_messages(owls)
        assert twins_words in list_request_messages(crabs)
        assert ("assistant", '<from agent="owl">\nheard: second\n</from>') in list_request_messages(
            crabs
        )


# ── Compaction as memory ───────────────────────────────────────────────────────────────────────


@pytest.mark.req("compact.marker")
@pytest.mark.parametrize(
    ("summary", "title"),
    [
        ("Pricing analysis for solo tools. More of it.", "Pricing analysis for solo tools."),
        ("x" * 80 + " and so on. More.", "x" * 59 + "…"),
    ],
)
async def test_a_marker_has_a_title_of_one_sentence_at_most_sixty_long_and_a_time(
    tmp_path: Path, summary: str, title: str
) -> None:
    async with run_daemon(tmp_path, summary=summary) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        await client.compact("crab")
        (marker,) = [line for line in daemon.read_log() if line["kind"] == "compact"]
        assert marker["title"] == title
        assert marker["summary"] == summary
        assert marker["archived_at"].endswith("Z")
        (archive,) = (await client.list_archives("crab")).archives
        assert (archive.title, archive.archived_at) == (title, marker["archived_at"])


@pytest.mark.req("compact.continues")
async def test_compaction_archives_a_segment_of_a_conversation_that_goes_on(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, summary="They met.") as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        await client.compact("crab")
        await client.send("crab", "again")
        assert list_request_messages(daemon.model.requests[-1]) == [
            ("system", "You are crab."),
            ("user", "They met."),
            ("user", "again"),
        ]
        (conversation,) = (await client.list_conversations()).conversations
        assert conversation.message_count == 4
        assert len(daemon.log_paths) == 1


@pytest.mark.req("compact.archives")
async def test_archived_segments_can_be_browsed(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for part in ("First part. Yes.", "Second part. No."):
            await client.send("crab", f"about the {part}")
            daemon.model.summary = part
            await client.compact("crab")
        first, second = (await client.list_archives("crab")).archives
        assert (first.title, second.title) == ("First part.", "Second part.")
        assert (first.first_id, first.end_id) == (0, 2)
        assert (second.first_id, second.end_id) == (2, 4)
        page = await client.list_messages("crab", offset=second.first_id, limit=2)
        assert [message.content for message in page.messages] == [
            "about the Second part. No.",
            "heard: about the Second part. No.",
        ]


# ── Removed and superseded features ────────────────────────────────────────────────────────────


@pytest.mark.req("conv.one_per_pair")
async def test_a_pair_has_one_conversation_that_is_never_replaced_or_resumed(
    tmp_path: Path,
) -> None:
    """The only conversation of a pair is always the active one."""
    async with run_daemon(tmp_path, summary="They met.") as daemon, daemon.client() as client:
        await client.send("crab", "one")
        await client.kill("crab")
        await client.send("crab", "two")
        await client.compact("crab")
        await client.send("crab", "three")
        (conversation,) = (await client.list_conversations()).conversations
        assert conversation.seq == 1
        assert [
            text for role, text in await read_conversation(client, "crab") if role == "user"
        ] == [
            "one",
            "two",
            "three",
        ]


@pytest.mark.req("conv.log.json_lines")
async def test_a_log_is_lines_of_json_with_names_on_messages_and_titles_on_markers(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, summary="They met.") as daemon, daemon.client() as client:
        await client.send("crab", "hello", guest="twin")
        await client.compact("crab")
        (log,) = daemon.log_paths
        assert log.suffix == ".jsonl"
        lines = [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]
        assert {line["kind"] for line in lines} == {"meta", "message", "event", "compact"}
        (marker,) = [line for line in lines if line["kind"] == "compact"]
        assert {"title", "archived_at"} <= marker.keys()
        assert [m["message"].get("agent") for m in lines if m["kind"] == "message"] == [
            None,
            "twin",
        ]


@pytest.mark.req("conv.active.listed")
async def test_active_conversations_are_listed_by_agent_and_sender(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello", sender="bo")
        (active,) = (await client.list_active_conversations()).conversations
        assert {field.name for field, _ in active.ListFields()} <= {
            "agent",
            "sender",
            "message_count",
            "alive_secs",
            "title",
        }
        assert (active.agent, active.sender, active.message_count) == ("crab", "bo", 2)
