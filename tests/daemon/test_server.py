"""The daemon's answers and error codes for requests other than turns."""

import asyncio
import json
import socket
import stat
import tomllib
from datetime import datetime
from pathlib import Path

import pytest

import crabtalk
from crabtalk.client import Client, ServerError
from crabtalk.daemon.handlers.wire_conversion import DayNames
from crabtalk.model import Message
from crabtalk.protocol import wire
from crabtalk.runtime import RuntimeLimits, ToolDispatch
from crabtalk.storage import ConversationMeta, MessageRecord, Pair
from tests.daemon.in_process_daemon import (
    AGENTS,
    CONFIG,
    PATIENCE,
    InProcessDaemon,
    collect_events,
    expect_error_code,
    get_stream_end,
    list_request_messages,
    prepare_home,
    read_conversation,
    run_daemon,
    wait_for_event,
    wait_with_timeout,
)

NOW = "2026-01-02T03:04:05.678Z"


async def look_around(call: ToolDispatch) -> str:
    return "waves"


async def get_handle(client: Client, agent: str = "", sender: str = "") -> str:
    (conversation,) = (await client.list_conversations(agent, sender)).conversations
    return conversation.file_path


async def store_messages(daemon: InProcessDaemon, texts: list[str], sender: str = "user") -> None:
    """Store an existing conversation."""
    pair = Pair("crab", sender)
    records = [MessageRecord(n, NOW, Message("user", text)) for n, text in enumerate(texts)]
    first = ConversationMeta(*pair, created_at=NOW).make_snapshot()
    await daemon.daemon.storage.append(pair, [first, *records], create=True)


# ── The daemon itself ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("daemon.stats")
async def test_stats_describe_the_daemon(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert (await client.hello()).server_version == crabtalk.__version__
        stats = await client.get_stats()
        assert stats.uptime_secs < 60
        assert (stats.active_conversations, stats.runs) == (0, 0)
        assert stats.registered_agents == 2
        assert stats.active_model == "scripted"
        assert list(stats.problems) == []
        running = client.stream("crab", "!wait")
        await wait_for_event(running, wire.StreamStart)
        await daemon.model.until_waiting()
        stats = await client.get_stats()
        assert (stats.active_conversations, stats.runs) == (1, 1)
        daemon.model.release()
        await collect_events(running)


@pytest.mark.req("conv.sender.default")
@pytest.mark.parametrize("sender", [None, ""])
async def test_a_missing_or_empty_sender_is_user_in_every_request(
    tmp_path: Path, sender: str | None
) -> None:
    """A client may omit it in one request and give it in another."""
    async with run_daemon(tmp_path, summary="They met.") as daemon, daemon.client() as client:
        await client.send("crab", "sent", sender=sender)
        running = client.stream("crab", "!wait\n!say done", sender=sender)
        await wait_for_event(running, wire.StreamStart)
        await daemon.model.until_waiting()
        await client.steer_session("crab", "steered", sender="")
        await client.steer_session("crab", "steered too", sender="user")
        assert await client.kill("crab", sender="")
        assert (
            get_stream_end(await collect_events(running)).stop_reason == wire.STOP_REASON_CANCELLED
        )
        assert await client.kill("crab", sender="user")
        assert await client.compact("crab", sender="") == "They met."
        pages = [await client.list_messages("crab", sender=s) for s in (sender, "user")]
        assert pages[0] == pages[1]
        assert [m.content for m in pages[0].messages] == [
            *("sent", "heard: sent", "!wait\n!say done", "steered", "steered too"),
        ]
        archives = [await client.list_archives("crab", sender=s) for s in (sender, "user")]
        assert archives[0] == archives[1]
        assert len(archives[0].archives) == 1
        (conversation,) = (await client.list_conversations()).conversations
        assert conversation.sender == "user"


# ── Lists ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.listed")
async def test_conversations_are_listed_most_recent_first_and_by_agent_and_sender(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for agent, sender in [("crab", "bo"), ("twin", "bo"), ("crab", "eva"), ("crab", "bo")]:
            await client.send(agent, "hello", sender=sender)

        async def listed(agent: str = "", sender: str = "") -> list[tuple[str, str]]:
            rows = (await client.list_conversations(agent, sender)).conversations
            return [(c.agent, c.sender) for c in rows]

        assert await listed() == [("crab", "bo"), ("crab", "eva"), ("twin", "bo")]
        assert await listed("crab") == [("crab", "bo"), ("crab", "eva")]
        assert await listed(sender="bo") == [("crab", "bo"), ("twin", "bo")]
        assert await listed("twin", "bo") == [("twin", "bo")]
        assert await listed("twin", "eva") == []
        assert await listed("cr") == []
        newest = (await client.list_conversations()).conversations[0]
        assert (newest.message_count, newest.date, newest.seq) == (4, "Today", 1)
        assert newest.alive_secs < 60


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("2026-03-02T00:30:00Z", "Today"),
        ("2026-03-01T22:30:00Z", "Yesterday"),
        ("2026-02-28T23:30:00Z", "Yesterday"),
        ("2026-02-28T22:30:00Z", "2026-02-28"),
        ("2025-03-02T00:30:00Z", "2025-03-02"),
    ],
)
def test_days_are_named_in_the_daemons_time_zone(when: str, expected: str) -> None:
    now = datetime.fromisoformat("2026-03-02T08:00:00+01:00")
    assert DayNames(now).name_day(datetime.fromisoformat(when)) == expected


@pytest.mark.req("conv.active.listed")
async def test_active_conversations_are_those_in_memory_and_can_be_filtered(
    tmp_path: Path,
) -> None:
    limits = RuntimeLimits(live_conversations=2)
    async with run_daemon(tmp_path, limits=limits) as daemon, daemon.client() as client:
        for sender in ("a", "b", "c"):
            await client.send("crab", "hello", sender=sender)

        async def active(agent: str = "", sender: str = "") -> list[str]:
            rows = (await client.list_active_conversations(agent, sender)).conversations
            return [c.sender for c in rows]

        assert await active() == ["b", "c"]
        assert await active("crab", "c") == ["c"]
        assert await active("twin") == []
        assert len((await client.list_conversations()).conversations) == 3
        await client.send("crab", "again", sender="a")
        assert len(list_request_messages(daemon.model.requests[-1])) == 4


# ── History, messages, archives ────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.history.shown")
async def test_a_history_has_the_readable_messages_of_the_agents_context(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, summary="They met.", tools={"look": look_around}) as daemon,
        daemon.client() as client,
    ):
        await client.send("crab", "long ago")
        await client.compact("crab")
        await client.send("crab", "!think hm\n!say wait\n!tool look {}\n!then\n!say done")
        await client.send("crab", "!say and I", guest="twin")
        history = await client.get_conversation_history(await get_handle(client))
        assert history.agent == "crab"
        assert [(m.role, m.content, m.agent) for m in history.messages] == [
            ("user", "They met.", ""),
            ("user", "!think hm\n!say wait\n!tool look {}\n!then\n!say done", ""),
            ("assistant", "wait", ""),
            ("assistant", "done", ""),
            ("user", "!say and I", ""),
            ("assistant", "and I", "twin"),
        ]


@pytest.mark.req("conv.history.too_large")
async def test_a_history_too_large_for_a_frame_is_refused_and_can_be_paged(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await store_messages(daemon, ["x" * 9_000_000, "y" * 9_000_000])
        assert (
            await expect_error_code(client.get_conversation_history(await get_handle(client)))
            == 413
        )
        page = await client.list_messages("crab")
        assert (len(page.messages), page.total, page.next_offset) == (1, 2, 1)
        page = await client.list_messages("crab", offset=1)
        assert page.messages[0].content[:1] == "y"
        assert not page.HasField("next_offset")


@pytest.mark.req("conv.messages.paged")
async def test_messages_are_paged_from_the_first_one(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, summary="They met.", tools={"look": look_around}) as daemon,
        daemon.client() as client,
    ):
        await client.send("crab", "!think hm\n!say wait\n!tool look {}\n!then\n!say done")
        await client.compact("crab")
        await client.send("crab", "more")
        seen: list[wire.ConversationMessage] = []
        offset: int | None = None
        while len(seen) < 6:
            page = await client.list_messages("crab", offset=offset, limit=2)
            assert page.total == 6
            assert len(page.messages) == 2
            seen += page.messages
            offset = page.next_offset if page.HasField("next_offset") else None
        assert offset is None
        assert [message.id for message in seen] == list(range(6))
        roles = [message.role for message in seen]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        calling, result = seen[1], seen[2]
        assert (calling.content, calling.reasoning) == ("wait", "hm")
        assert [(c.name, c.arguments, c.id) for c in calling.tool_calls] == [
            ("look", "{}", "call_1"),
        ]
        assert (result.content, result.call_id) == ("waves", "call_1")
        assert all(message.timestamp.endswith("Z") for message in seen)


@pytest.mark.req("conv.messages.paged")
@pytest.mark.parametrize(
    ("offset", "limit", "count", "following"),
    [
        (None, None, 100, 100),
        (0, 0, 100, 100),
        (0, 10_000, 500, 500),
        (590, 2**32 - 1, 10, None),
        (600, 10, 0, None),
        (2**64 - 1, 10, 0, None),
    ],
)
async def test_pages_have_a_maximum_size_and_an_end(
    tmp_path: Path, offset: int | None, limit: int | None, count: int, following: int | None
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await store_messages(daemon, [f"message {n}" for n in range(600)])
        page = await client.list_messages("crab", offset=offset, limit=limit)
        assert (len(page.messages), page.total) == (count, 600)
        assert (page.next_offset if page.HasField("next_offset") else None) == following


# ── Compacting ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("compact.refused")
async def test_compacting_needs_a_conversation_with_something_in_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary="They met.") as daemon, daemon.client() as client:
        assert await expect_error_code(client.compact("crab")) == 404
        assert await expect_error_code(client.compact("squid")) == 404
        await client.send("crab", "hello")
        await client.compact("crab")
        assert await expect_error_code(client.compact("crab")) == 400
        assert len((await client.list_archives("crab")).archives) == 1


@pytest.mark.req("compact.failed")
@pytest.mark.parametrize("answer", ["!status 400 no", "!nothing", "!say half\n!cut"])
async def test_a_compaction_whose_model_fails_changes_nothing(tmp_path: Path, answer: str) -> None:
    """The agent's prompt is part of the text to summarise, so it can be the model's script."""
    agents = {"crab": f"prompt = '''{answer}'''\n"}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        (log,) = daemon.log_paths
        before = log.read_bytes()
        assert await expect_error_code(client.compact("crab")) == 500
        assert log.read_bytes() == before
        assert list((await client.list_archives("crab")).archives) == []
        await client.send("crab", "again")
        assert len(list_request_messages(daemon.model.requests[-1])) == 4


@pytest.mark.req("compact.turns_wait")
async def test_turns_wait_for_a_compaction_and_get_the_summary(
    tmp_path: Path,
) -> None:
    agents = {"crab": 'prompt = """!wait\n!say In short."""\n'}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        compacting = asyncio.ensure_future(client.compact("crab"))
        await daemon.model.until_waiting()
        running = client.stream("crab", "again")
        await wait_for_event(running, wire.StreamStart)
        assert len(daemon.model.requests) == 2
        daemon.model.release()
        assert await wait_with_timeout(compacting) == "In short."
        await collect_events(running)
        assert [text for _, text in list_request_messages(daemon.model.requests[-1])[1:]] == [
            "In short.",
            "again",
        ]


@pytest.mark.req("compact.kill")
async def test_a_killed_compaction_changes_nothing(tmp_path: Path) -> None:
    agents = {"crab": 'prompt = "!hang"\n'}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        compacting = asyncio.ensure_future(client.compact("crab"))
        await daemon.model.until_asked(2)
        assert await client.kill("crab")
        assert await expect_error_code(compacting) == 500
        assert list((await client.list_archives("crab")).archives) == []
        await daemon.model.until_hung_up()


# ── Deleting ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.delete")
async def test_deleting_removes_the_file_the_live_state_and_the_listing(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello", sender="bo")
        await client.send("crab", "hello", sender="eva")
        handle = await get_handle(client, sender="bo")
        await client.delete_conversation(handle)
        assert [c.sender for c in (await client.list_conversations()).conversations] == ["eva"]
        active = (await client.list_active_conversations()).conversations
        assert [c.sender for c in active] == ["eva"]
        assert len(daemon.log_paths) == 1
        assert not await client.kill("crab", sender="bo")
        for request in (
            client.get_conversation_history(handle),
            client.delete_conversation(handle),
            client.list_messages("crab", sender="bo"),
            client.list_archives("crab", sender="bo"),
        ):
            assert await expect_error_code(request) == 404
        await client.send("crab", "hello again", sender="bo")
        assert len(list_request_messages(daemon.model.requests[-1])) == 2


@pytest.mark.req("conv.delete.running")
async def test_deleting_ends_a_running_turn_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        running = client.stream("crab", "!say so far\n!hang")
        await wait_for_event(running, wire.StreamChunk)
        await client.delete_conversation(await get_handle(client))
        assert (
            get_stream_end(await collect_events(running)).stop_reason == wire.STOP_REASON_CANCELLED
        )
        assert daemon.log_paths == []
        assert list((await client.list_conversations()).conversations) == []
        assert list((await client.list_active_conversations()).conversations) == []
        assert (await client.get_stats()).active_conversations == 0
        await daemon.model.until_hung_up()
        await client.send("crab", "hello")
        assert await read_conversation(client, "crab") == [
            ("user", "hello"),
            ("assistant", "heard: hello"),
        ]


@pytest.mark.req("conv.delete.running")
async def test_a_turn_queued_behind_a_deleted_one_starts_a_new_conversation(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        first = client.stream("crab", "!say so far\n!hang")
        await wait_for_event(first, wire.StreamChunk)
        second = client.stream("crab", "second")
        await wait_for_event(second, wire.StreamStart)
        await client.delete_conversation(await get_handle(client))
        await collect_events(first)
        await collect_events(second)
        assert await read_conversation(client, "crab") == [
            ("user", "second"),
            ("assistant", "heard: second"),
        ]


@pytest.mark.req("conv.delete")
async def test_of_concurrent_deletions_one_succeeds_and_the_others_get_404(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        handle = await get_handle(client)
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(
                *(client.delete_conversation(handle) for _ in range(8)), return_exceptions=True
            )
        assert results.count(None) == 1
        assert {r.code for r in results if isinstance(r, ServerError)} == {404}
        assert daemon.log_paths == []


@pytest.mark.req("conv.handles.checked")
async def test_unknown_handles_are_refused(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        (log,) = daemon.log_paths
        outside = daemon.home / "outside.jsonl"
        outside.write_bytes(log.read_bytes())

        def contents() -> dict[Path, bytes]:
            # The derived files in index/ change by themselves.
            parts = [path for path in daemon.home.iterdir() if path.name != "index"]
            paths = [path for part in parts for path in [part, *part.rglob("*")]]
            return {path: path.read_bytes() for path in paths if path.is_file()}

        before = contents()
        for handle in (
            *("", ".", "..", "../outside", "/etc/passwd", "sub/../../outside", "..\\outside"),
            *("%2e%2e/outside", f"{daemon.home}/outside", "*", "\0", "outside\0", "crab-user-0"),
            *("x" * 255, "x" * 100_000, "x" * 250 + "\0" * 10, "日" * 80, "\u2028", "-", "_"),
            *(f"{log.stem}{more}" for more in (".jsonl", "/", "\n", " ", "\0", "/../x", "-2")),
            f"./{log.stem}",
        ):
            assert await expect_error_code(client.get_conversation_history(handle)) == 404, handle
            assert await expect_error_code(client.delete_conversation(handle)) == 404, handle
        assert contents() == before
        await client.delete_conversation(log.stem)
        assert outside.exists()


# ── Models ─────────────────────────────────────────────────────────────────────────────────────

ANY_MODEL = '# ours\n[llm]\nbase_url = "{url}" # here\nmax_retries = 0\n'


@pytest.mark.req("models.listed")
async def test_models_are_listed_with_the_active_one(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, config=ANY_MODEL) as daemon, daemon.client() as client:
        daemon.model.models += ["other"]
        listed = (await client.list_models()).models
        assert [(m.name, m.active) for m in listed] == [("scripted", True), ("other", False)]
        assert (await client.get_stats()).active_model == "scripted"


@pytest.mark.parametrize(("reported", "listed"), [(0, 0), (4096, 4096), (-1, 0), (1 << 70, 0)])
@pytest.mark.req("models.context")
async def test_a_model_is_listed_with_its_context_limit_if_known(
    tmp_path: Path, reported: int, listed: int
) -> None:
    async with run_daemon(tmp_path, config=ANY_MODEL) as daemon, daemon.client() as client:
        daemon.model.context = reported
        (model,) = (await client.list_models()).models
        assert (model.HasField("context_limit"), model.context_limit) == (listed > 0, listed)


@pytest.mark.req("models.set_active")
async def test_the_active_model_is_used_at_once_and_added_to_the_config_file(
    tmp_path: Path,
) -> None:
    agents = {"crab": 'prompt = "c"\n', "owl": 'prompt = "o"\nmodel = "scripted"\n'}
    async with (
        run_daemon(tmp_path, config=ANY_MODEL, agents=agents) as daemon,
        daemon.client() as client,
    ):
        daemon.model.models += ["other"]
        await client.set_active_model("other")
        assert (await client.get_stats()).active_model == "other"
        assert [m.name for m in (await client.list_models()).models if m.active] == ["other"]
        assert (await client.send("crab", "hello")).model == "other"
        assert (await client.send("owl", "hello")).model == "scripted"
        config = daemon.home / "config.toml"
        assert config.read_text().startswith(ANY_MODEL.replace("{url}", daemon.model.url))
        assert tomllib.loads(config.read_text())["daemon"] == {"model": "other"}
        assert stat.S_IMODE(config.stat().st_mode) == 0o600
        await client.reload()
        assert (await client.send("crab", "hello")).model == "other"


@pytest.mark.req("models.set_active")
async def test_an_unknown_model_cannot_be_made_active(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, config=ANY_MODEL) as daemon, daemon.client() as client:
        before = (daemon.home / "config.toml").read_bytes()
        assert await expect_error_code(client.set_active_model("nonesuch")) == 404
        assert await expect_error_code(client.set_active_model(" ")) == 400
        assert (daemon.home / "config.toml").read_bytes() == before
        assert (await client.send("crab", "hello")).model == "scripted"


@pytest.mark.req("models.listed")
async def test_an_unreachable_provider_lists_its_configured_models(tmp_path: Path) -> None:
    config = '[[providers]]\nname = "p"\nbase_url = "http://127.0.0.1:1"\nmax_retries = 0\n'
    config += 'models = ["a", "b"]\n'
    async with run_daemon(tmp_path, config=config) as daemon, daemon.client() as client:
        assert [m.name for m in (await client.list_models()).models] == ["a", "b"]
        await client.set_active_model("b")
        assert (await client.get_stats()).active_model == "b"
        assert json.dumps("b") in (daemon.home / "config.toml").read_text()


@pytest.mark.req("models.listed")
async def test_listing_models_times_out_if_a_provider_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crabtalk.daemon.handlers.agents.LIST_MODELS_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        config = f'[llm]\nbase_url = "http://127.0.0.1:{mute.getsockname()[1]}/v1"\n'
        async with run_daemon(tmp_path, config=config) as daemon, daemon.client() as client:
            assert await expect_error_code(client.list_models()) == 503
            assert await expect_error_code(client.set_active_model("m")) == 503
            await client.ping()


# ── Storage failures ───────────────────────────────────────────────────────────────────────────


@pytest.mark.req("durability.storage_failure_told")
@pytest.mark.on_files
async def test_a_storage_failure_is_an_error_for_the_client(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        (daemon.home / "sessions").touch()  # where a directory should be
        with pytest.raises(ServerError, match="cannot") as caught:
            # The turn is not accepted, so it never starts.
            await collect_events(client.stream("crab", "hello"))
        assert caught.value.code == 500
        assert await expect_error_code(client.send("crab", "hello")) == 500
        assert await expect_error_code(client.list_conversations()) == 500
        assert daemon.model.requests == []  # the model gets no message that was not stored
        (daemon.home / "sessions").unlink()
        assert (await client.send("crab", "hello")).content == "heard: hello"


@pytest.mark.req("daemon.start.bad_storage")
@pytest.mark.on_files
async def test_unreadable_agents_are_a_problem_but_do_not_prevent_the_start(
    tmp_path: Path,
) -> None:
    prepare_home(tmp_path / "home", AGENTS, CONFIG)
    agents = tmp_path / "home" / "agents"
    agents.rename(tmp_path / "away")
    agents.touch()
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        (problem,) = (await client.get_stats()).problems
        assert str(agents) in problem
        assert await expect_error_code(client.send("crab", "hello")) == 404
        assert await expect_error_code(client.create_agent("owl", "You are owl.")) == 500
        agents.unlink()
        (tmp_path / "away").rename(agents)
        daemon.write_config(CONFIG.replace("{url}", daemon.model.url))
        await client.reload()
        assert list((await client.get_stats()).problems) == []
        assert (await client.send("crab", "hello")).content == "heard: hello"
