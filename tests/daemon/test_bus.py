"""The event bus through a real socket: the end of one agent's turn starts another agent."""

import asyncio
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client, connect
from crabtalk.daemon.events import run_queue
from crabtalk.daemon.events.event_bus import EventBus
from crabtalk.daemon.events.run_queue import EventLimits
from crabtalk.daemon.events.subscription_file import SubscriptionFile
from crabtalk.runtime import RuntimeLimits
from crabtalk.storage import Subscription
from tests.crash.launched_daemon import LaunchedDaemon, prepare_home
from tests.daemon.in_process_daemon import (
    AGENTS,
    PATIENCE,
    InProcessDaemon,
    collect_events,
    expect_error_code,
    follow_feed,
    list_request_messages,
    read_conversation,
    run_daemon,
    script_tool_calls,
    wait_until,
    wait_with_timeout,
)
from tests.loop_latency import read_steal_time
from tests.model_server import ROOT, model_server

THREE = {**AGENTS, "owl": 'prompt = "You are owl."\n'}
DONE = "agent:crab:done"
FAILED = "agent:crab:failed"


async def wait_until_quiet(daemon: InProcessDaemon) -> None:
    """Wait until nothing runs and no published event waits."""
    runtime, bus = daemon.daemon.runtime, daemon.daemon.bus

    def is_quiet() -> bool:
        states = bus.statistics()
        return not (
            runtime.running_count or states["waiting"] or states["running"] or states["changing"]
        )

    await wait_until(is_quiet)


async def list_fired_texts(
    daemon: InProcessDaemon, client: Client, agent: str, source: str
) -> list[str]:
    """The event texts of a source that an agent got, after all runs are over."""
    await wait_until_quiet(daemon)
    sender = f"event:{source}"
    listed = await client.list_conversations(agent=agent, sender=sender)
    if not listed.conversations:
        return []
    return [text for role, text in await read_conversation(client, agent, sender) if role == "user"]


def get_subscription_path(home: Path) -> Path:
    return home / "events" / "subscriptions.toml"


def format_table(number: int, source: str, target: str, *, once: bool = False) -> str:
    return (
        f'[[subscription]]\nid = {number}\nsource = "{source}"\ntarget_agent = "{target}"\n'
        f"once = {json.dumps(once)}\n"
    )


async def read_subscriptions(client: Client) -> list[tuple[int, str, str, bool]]:
    subscriptions = (await client.list_subscriptions()).subscriptions
    return [
        (subscription.id, subscription.source, subscription.target_agent, subscription.once)
        for subscription in subscriptions
    ]


# ── Publishing ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("events.done")
@pytest.mark.req("events.conversation")
async def test_the_end_of_one_agents_turn_starts_another_agent_with_its_text(
    tmp_path: Path,
) -> None:
    """And so on down the chain, each in its own conversation with the source."""
    async with run_daemon(tmp_path, agents=THREE) as daemon, daemon.client() as client:
        await client.subscribe_event(DONE, "twin")
        await client.subscribe_event("agent:twin:done", "owl")
        answer = await client.send("crab", "!say the tide is out", sender="bo")
        assert answer.content == "the tide is out"
        await wait_until_quiet(daemon)
        assert await read_conversation(client, "twin", "event:agent:crab:done") == [
            ("user", "the tide is out"),
            ("assistant", "heard: the tide is out"),
        ]
        assert await read_conversation(client, "owl", "event:agent:twin:done") == [
            ("user", "heard: the tide is out"),
            ("assistant", "heard: heard: the tide is out"),
        ]
        assert daemon.model.request_count == 3


@pytest.mark.one_loop
async def test_the_example_in_the_events_page_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    agents = {**AGENTS, "scout": 'prompt = "You are scout."\n'}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        example = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), env={**os.environ, "CRABTALK_HOME": str(daemon.home)}
        )
        assert await wait_with_timeout(example.wait()) == 0
        assert await list_fired_texts(daemon, client, "scout", "rss:fetch") == [
            "Crabs found on the moon"
        ]
        texts = await list_fired_texts(daemon, client, "crab", "agent:scout:done")
        assert texts == ["heard: Crabs found on the moon"]


@pytest.mark.req("events.done")
@pytest.mark.parametrize("way", ["send", "stream", "detached"])
async def test_every_way_to_run_a_turn_publishes_its_end(tmp_path: Path, way: str) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event(DONE, "twin")
        if way == "send":
            await client.send("crab", "!say it")
        else:
            await collect_events(client.stream("crab", "!say it", detach=way == "detached"))
        assert await list_fired_texts(daemon, client, "twin", DONE) == ["it"]


@pytest.mark.req("events.failed")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("!status 400 no such luck", "no such luck"),
        ("!nothing", "crab said nothing"),
        (
            script_tool_calls([("none", {})]).replace("!say done", "!tool none {}"),
            "took all the steps",
        ),
    ],
)
async def test_a_turn_that_fails_or_says_nothing_publishes_failed_with_the_reason(
    tmp_path: Path, content: str, expected: str
) -> None:
    agents = {**AGENTS, "crab": 'prompt = "You are crab."\nmax_iterations = 2\n'}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        await client.subscribe_event(DONE, "twin")
        await client.subscribe_event(FAILED, "twin")
        await collect_events(client.stream("crab", content))
        (payload,) = await list_fired_texts(daemon, client, "twin", FAILED)
        assert expected in payload
        assert await list_fired_texts(daemon, client, "twin", DONE) == []


@pytest.mark.req("events.failed")
async def test_a_killed_turn_publishes_failed(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event(FAILED, "twin")
        turn = asyncio.ensure_future(collect_events(client.stream("crab", "!hang")))
        await daemon.model.until_asked()
        await client.kill("crab")
        await turn
        assert await list_fired_texts(daemon, client, "twin", FAILED) == [
            "crab was stopped before it was done"
        ]


@pytest.mark.req("events.done")
async def test_words_said_before_an_empty_last_step_are_the_result(tmp_path: Path) -> None:
    async def look(call: Any) -> str:
        return "waves"

    async with run_daemon(tmp_path, tools={"look": look}) as daemon, daemon.client() as client:
        await client.subscribe_event(DONE, "twin")
        await collect_events(client.stream("crab", "!say found it\n!tool look {}\n!then\n!nothing"))
        assert await list_fired_texts(daemon, client, "twin", DONE) == ["found it"]


@pytest.mark.req("events.no_guests")
async def test_a_guests_turn_publishes_nothing(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=THREE) as daemon, daemon.client() as client:
        for source in (DONE, "agent:twin:done"):
            await client.subscribe_event(source, "owl")
        await client.send("crab", "!say hi", guest="twin")
        await wait_until_quiet(daemon)
        assert daemon.model.request_count == 1


@pytest.mark.req("events.match")
async def test_sources_are_compared_exactly(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for source in ("rss:fetch", "rss", "rss:*", "rss:fetch ", "RSS:fetch"):
            await client.subscribe_event(source, "twin")
        await client.publish_event("rss:fetch", "news")
        await wait_until_quiet(daemon)
        assert daemon.model.request_count == 1
        assert await list_fired_texts(daemon, client, "twin", "rss:fetch") == ["news"]


@pytest.mark.req("events.publish")
async def test_any_client_can_publish_without_waiting_for_the_runs(tmp_path: Path) -> None:
    """The runs do not depend on the publisher's connection."""
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        async with daemon.client() as publisher:
            await publisher.publish_event("no:subscribers")
            await publisher.subscribe_event("rss:fetch", "twin")
            await wait_with_timeout(publisher.publish_event("rss:fetch", "!wait\n!say read"))
            await daemon.model.until_waiting()
        daemon.model.release()
        await wait_until_quiet(daemon)
        assert await read_conversation(client, "twin", "event:rss:fetch") == [
            ("user", "!wait\n!say read"),
            ("assistant", "read"),
        ]


@pytest.mark.req("events.publish")
@pytest.mark.parametrize("payload", ["", " \n"])
async def test_an_event_without_a_payload_says_its_source(tmp_path: Path, payload: str) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event("build:green", "twin")
        await client.publish_event("build:green", payload)
        assert await list_fired_texts(daemon, client, "twin", "build:green") == ["build:green"]


@pytest.mark.req("events.conversation")
async def test_events_of_one_source_reach_an_agent_in_order(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event("rss:fetch", "twin")
        for number in range(20):
            await client.publish_event("rss:fetch", str(number))
        texts = await list_fired_texts(daemon, client, "twin", "rss:fetch")
        assert texts == [str(number) for number in range(20)]


@pytest.mark.req("events.verbatim")
async def test_a_payload_that_looks_like_a_command_is_passed_on_unchanged(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        skill = daemon.home / "skills" / "tides"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: tides\ndescription: d\n---\nLook at the moon.")
        await client.reload()
        await client.send("twin", "/tides now")
        assert "Look at the moon." in json.dumps(daemon.model.requests[-1])
        await client.subscribe_event("x", "twin")
        await client.publish_event("x", "/tides now")
        await wait_until_quiet(daemon)
        assert list_request_messages(daemon.model.requests[-1])[-1] == ("user", "/tides now")
        assert "Look at the moon." not in json.dumps(daemon.model.requests[-1]["messages"])


@pytest.mark.req("events.stranger")
async def test_a_run_started_by_an_event_gets_no_shell(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.subscribe_event("x", "twin")
        await client.publish_event("x", script_tool_calls([("bash", {"command": "echo ran"})]))
        await wait_until_quiet(daemon)
        messages = await read_conversation(client, "twin", "event:x")
        (result,) = [text for role, text in messages if role == "tool"]
        assert result.startswith("permission denied:")


# ── Delegation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("events.background")
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("agent", ["twin", ""])
async def test_a_delegated_task_publishes_its_end_and_workers_share_a_name(
    tmp_path: Path, background: bool, agent: str
) -> None:
    async with run_daemon(tmp_path, agents=THREE, hooks={}) as daemon, daemon.client() as client:
        source = f"agent:{agent or 'worker'}:done"
        await client.subscribe_event(source, "owl")
        tasks = [{"agent": agent, "message": "!say found it"}]
        call = ("delegate", {"tasks": tasks, "background": background})
        await client.send("crab", script_tool_calls([call]))
        assert await list_fired_texts(daemon, client, "owl", source) == ["found it"]


def script_delegation_chain(times: int) -> str:
    """A script that delegates to twin, whose answer is a script that delegates again, and so on."""
    if times == 0:
        return "!say the end"
    task = {"agent": "twin", "message": f"!say {script_delegation_chain(times - 1)}"}
    return f"!tool delegate {json.dumps({'tasks': [task]})}"


@pytest.mark.req("events.depth_delegated")
async def test_the_event_depth_counts_delegated_runs(tmp_path: Path) -> None:
    limits = EventLimits(event_depth=2)
    async with (
        run_daemon(tmp_path, hooks={}, event_limits=limits) as daemon,
        daemon.client() as client,
    ):
        await client.subscribe_event("agent:twin:done", "crab", sender="user")
        await client.send("crab", script_delegation_chain(6))
        assert await list_fired_texts(daemon, client, "crab", "agent:twin:done") == [
            script_delegation_chain(5),
            script_delegation_chain(4),
        ]


# ── Cycles ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("events.depth")
@pytest.mark.parametrize("cycle", [["crab"], ["crab", "twin"], ["crab", "twin", "owl"]])
async def test_a_cycle_of_events_stops_at_the_maximum_depth_and_is_reported(
    tmp_path: Path, cycle: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with run_daemon(tmp_path, agents=THREE) as daemon, daemon.client() as client:
        for agent, next_agent in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            last = await client.subscribe_event(f"agent:{agent}:done", next_agent)
        await client.send("crab", "x")
        await wait_until_quiet(daemon)
        assert daemon.model.request_count == 1 + EventLimits().event_depth == 9
        (problem,) = (await client.get_stats()).problems
        source = f"agent:{cycle[8 % len(cycle)]}:done"
        assert "circles" in problem
        assert source in problem
        assert "event_depth" in problem
        assert problem in caplog.text
        # The next cycle that a person starts gets just as far.
        await client.send("crab", "x")
        await wait_until_quiet(daemon)
        assert daemon.model.request_count == 18
        await client.unsubscribe_event(last.id)
        assert list((await client.get_stats()).problems) == []


@pytest.mark.req("events.depth")
async def test_a_failure_that_starts_its_own_agent_stops_too(tmp_path: Path) -> None:
    limits = EventLimits(event_depth=3)
    async with run_daemon(tmp_path, event_limits=limits) as daemon, daemon.client() as client:
        await client.subscribe_event(FAILED, "crab")
        await client.subscribe_event(DONE, "crab")
        await collect_events(client.stream("crab", "!status 400 !status 400 no"))
        await wait_until_quiet(daemon)
        assert daemon.model.request_count == 4


# ── Once ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("events.once")
async def test_a_once_subscription_fires_once_for_simultaneous_events(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event("x", "twin", once=True)
        await client.subscribe_event("x", "crab")
        await asyncio.gather(*(client.publish_event("x", "now") for _ in range(8)))
        assert await list_fired_texts(daemon, client, "twin", "x") == ["now"]
        assert await list_fired_texts(daemon, client, "crab", "x") == ["now"] * 8
        assert await read_subscriptions(client) == [(2, "x", "crab", False)]


@pytest.mark.req("events.once_order")
@pytest.mark.on_files
async def test_a_once_subscription_is_removed_on_disk_before_it_is_fired(tmp_path: Path) -> None:
    limits = EventLimits(event_runs=1)
    async with run_daemon(tmp_path, event_limits=limits) as daemon, daemon.client() as client:
        await client.subscribe_event("slow", "crab")
        await client.subscribe_event("x", "twin", once=True)
        await client.publish_event("slow", "!wait")
        await daemon.model.until_waiting()
        await client.publish_event("x", "now")
        assert 'source = "x"' not in get_subscription_path(daemon.home).read_text()
        assert daemon.daemon.bus.statistics()["waiting"] == 1
        assert daemon.model.request_count == 1
        daemon.model.release()
        assert await list_fired_texts(daemon, client, "twin", "x") == ["now"]


@pytest.mark.req("events.once_order")
@pytest.mark.on_files
async def test_a_once_subscription_that_cannot_be_removed_is_not_fired_and_stays(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event("x", "twin", once=True)
        path = get_subscription_path(daemon.home)
        text = path.read_text()
        path.write_text("broken [")
        assert await expect_error_code(client.publish_event("x", "lost")) == 500
        assert path.read_text() == "broken ["
        assert await read_subscriptions(client) == [(1, "x", "twin", True)]
        assert any("subscriptions.toml" in p for p in (await client.get_stats()).problems)
        path.write_text(text)
        await client.publish_event("x", "found")
        assert await list_fired_texts(daemon, client, "twin", "x") == ["found"]
        assert await read_subscriptions(client) == []
        assert list((await client.get_stats()).problems) == []


@pytest.mark.req("events.once_order")
@pytest.mark.on_files
async def test_a_once_subscription_that_a_person_removed_from_the_file_is_not_fired(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event("x", "twin", once=True)
        get_subscription_path(daemon.home).write_text("")
        await client.publish_event("x", "now")
        await wait_until_quiet(daemon)
        assert daemon.model.request_count == 0


class HeldSubscriptionFile(SubscriptionFile):
    """Blocks each load until a permit is released."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.permits = asyncio.Semaphore(0)

    async def load(self) -> list[Subscription]:
        subscriptions = await super().load()
        await self.permits.acquire()
        return subscriptions


@pytest.mark.req("events.once")
@pytest.mark.on_files
async def test_a_once_subscription_fires_once_even_if_a_reload_reads_it_again_before_its_removal(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        file = HeldSubscriptionFile(tmp_path / "subscriptions.toml")
        bus = EventBus(file, lambda: daemon.daemon.runtime)
        await bus.subscribe("x", "twin", once=True)
        reloads = [asyncio.ensure_future(bus.load()) for _ in range(2)]
        await asyncio.sleep(0)
        events = [asyncio.ensure_future(bus.publish("x", "first"))]
        await wait_until(lambda: bus.subscriptions == [])
        file.permits.release()
        await wait_with_timeout(reloads[0])
        assert len(bus.subscriptions) == 1
        events.append(asyncio.ensure_future(bus.publish("x", "second")))
        await wait_until(lambda: bus.subscriptions == [])
        file.permits.release()
        await wait_with_timeout(asyncio.gather(*reloads, *events))
        await wait_until(lambda: bus.run_queue.waiting + bus.run_queue.running == 0)
        assert await list_fired_texts(daemon, client, "twin", "x") == ["first"]
        assert bus.subscriptions == []
        await bus.close()


@pytest.mark.req("events.once")
@pytest.mark.req("events.many")
@pytest.mark.one_loop
@pytest.mark.on_files
@pytest.mark.slow
async def test_a_thousand_once_subscriptions_are_removed_together_and_each_runs(
    tmp_path: Path,
) -> None:
    async with model_server(is_recording=False) as model:
        async with run_daemon(tmp_path, model):
            pass
        path = get_subscription_path(tmp_path / "home")
        path.parent.mkdir()
        path.write_text("\n".join(format_table(n, f"x{n}", "twin", once=True) for n in range(1000)))
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            bus, changes, before = daemon.daemon.bus, 0, path.stat().st_ino
            events = [asyncio.ensure_future(bus.publish(f"x{n}", "now")) for n in range(1000)]
            while not all(event.done() for event in events):
                await asyncio.sleep(0)
                changes += path.stat().st_ino != before
                before = path.stat().st_ino
            await wait_with_timeout(asyncio.gather(*events))
            await wait_until_quiet(daemon)
            assert model.request_count == 1000
            assert await read_subscriptions(client) == []
            assert "subscription" not in path.read_text()
            assert changes <= 3


@pytest.mark.req("events.once_order")
@pytest.mark.req("events.survive")
@pytest.mark.one_loop
async def test_a_kill_after_a_once_event_loses_no_subscription_and_repeats_no_run(
    home: Path,
) -> None:
    async with model_server() as model:
        prepare_home(home, model)
        process = LaunchedDaemon(home)
        try:
            await process.start()
            async with connect(home=home) as client:
                await client.subscribe_event("x", "owl", once=True)
                await client.publish_event("x", "!hang")
                await model.until_asked()
                await client.subscribe_event("x", "crab")
                process.send_signal(signal.SIGKILL)
            await process.wait_for_exit()
            await process.start()
            async with connect(home=home) as client:
                assert await read_subscriptions(client) == [(2, "x", "crab", False)]
                await client.publish_event("x", "again")
                request = await model.until_asked(2)
                assert list_request_messages(request)[-1] == ("user", "again")
                assert list_request_messages(request)[0][1].startswith("You are crab.")
        finally:
            await process.kill()


# ── Storage ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("events.survive")
@pytest.mark.req("events.requests")
async def test_subscriptions_survive_a_restart_and_ids_go_on(tmp_path: Path) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            assert await read_subscriptions(client) == []
            first = await client.subscribe_event(DONE, "twin")
            assert (first.id, first.source, first.target_agent, first.once) == (
                *(1, DONE, "twin", False),
            )
            second = await client.subscribe_event(DONE, "twin", once=True)
            assert (second.id, second.once) == (2, True)
            await client.unsubscribe_event(first.id)
            assert await expect_error_code(client.unsubscribe_event(first.id)) == 404
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            assert await read_subscriptions(client) == [(2, DONE, "twin", True)]
            assert (await client.subscribe_event("y", "crab")).id == 3
            await client.send("crab", "!say it")
            assert await list_fired_texts(daemon, client, "twin", DONE) == ["it"]
            assert await read_subscriptions(client) == [(3, "y", "crab", False)]


@pytest.mark.req("events.reload")
@pytest.mark.on_files
async def test_edits_of_the_subscription_file_apply_after_a_reload(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event("x", "twin")
        get_subscription_path(daemon.home).write_text(
            f"# by hand\n{format_table(7, 'y', 'crab')}{format_table(4, 'z', 'twin')}"
        )
        await client.publish_event("y", "too soon")
        await client.reload()
        assert await read_subscriptions(client) == [
            (4, "z", "twin", False),
            (7, "y", "crab", False),
        ]
        await client.publish_event("y", "now")
        assert await list_fired_texts(daemon, client, "crab", "y") == ["now"]
        assert (await client.subscribe_event("q", "crab")).id == 8
        assert get_subscription_path(daemon.home).read_text().startswith("# by hand\n")


@pytest.mark.req("events.broken_file")
@pytest.mark.on_files
async def test_a_broken_file_is_a_problem_and_is_not_changed_until_it_is_corrected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    async with run_daemon(tmp_path):
        pass
    path = get_subscription_path(home)
    path.parent.mkdir()
    path.write_text(f"{format_table(5, 'x', 'twin')}oops\n")
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        (problem,) = (await client.get_stats()).problems
        assert str(path) in problem
        assert "mend it" in problem
        assert problem in caplog.text
        assert await expect_error_code(client.subscribe_event("y", "crab")) == 500
        assert await expect_error_code(client.unsubscribe_event(5)) == 500
        assert path.read_text() == f"{format_table(5, 'x', 'twin')}oops\n"
        path.write_text(format_table(5, "x", "twin"))
        assert (await client.subscribe_event("y", "crab")).id == 6
        assert await read_subscriptions(client) == [
            (5, "x", "twin", False),
            (6, "y", "crab", False),
        ]
        assert list((await client.get_stats()).problems) == []
        path.write_text("oops")
        await client.reload()
        assert len((await client.get_stats()).problems) == 1
        await client.publish_event("x", "still in force")
        assert await list_fired_texts(daemon, client, "twin", "x") == ["still in force"]


@pytest.mark.req("events.unknown_target")
async def test_a_target_that_is_gone_is_reported_and_others_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_daemon(tmp_path, agents=THREE) as daemon, daemon.client() as client:
        for agent in ("owl", "twin", "crab"):
            await client.subscribe_event("x", agent)
        await client.rename_agent("owl", "night_owl")
        await client.delete_agent("twin")
        await client.publish_event("x", "now")
        assert await list_fired_texts(daemon, client, "crab", "x") == ["now"]
        assert len(await read_subscriptions(client)) == 3
        gone = list((await client.get_stats()).problems)
        assert len(gone) == 2
        assert "'owl'" in gone[0]
        assert "'twin'" in gone[1]
        assert "the event 'x' has no agent to run" in caplog.text
        await client.rename_agent("night_owl", "owl")
        await client.create_agent("twin", "You are twin again.")
        assert list((await client.get_stats()).problems) == []
        await client.publish_event("x", "again")
        assert await list_fired_texts(daemon, client, "twin", "x") == ["again"]


# ── Bounds ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("events.requests")
async def test_invalid_subscriptions_and_events_are_refused(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert await expect_error_code(client.subscribe_event("x", "missing")) == 404
        for source in ("", "  ", "x" * 513):
            assert await expect_error_code(client.subscribe_event(source, "crab")) == 400
            assert await expect_error_code(client.publish_event(source, "p")) == 400
        assert await expect_error_code(client.publish_event("x", "p" * (1024 * 1024 + 1))) == 400
        assert await expect_error_code(client.unsubscribe_event(2**64 - 1)) == 404
        assert not get_subscription_path(daemon.home).exists()
        await client.subscribe_event("x" * 512, "crab")
        await client.publish_event("x" * 512, "p" * (1024 * 1024))
        assert await list_fired_texts(daemon, client, "crab", "x" * 512) == ["p" * (1024 * 1024)]


@pytest.mark.req("events.bound")
async def test_subscriptions_beyond_the_bound_are_refused(tmp_path: Path) -> None:
    limits = EventLimits(subscriptions=2)
    async with run_daemon(tmp_path, event_limits=limits) as daemon, daemon.client() as client:
        for _ in range(2):
            last = await client.subscribe_event("x", "crab")
        assert await expect_error_code(client.subscribe_event("x", "crab")) == 503
        await client.unsubscribe_event(last.id)
        await client.subscribe_event("x", "crab")


@pytest.mark.req("events.queue")
@pytest.mark.req("events.counted")
@pytest.mark.parametrize("limits", [EventLimits(events_waiting=2), EventLimits(event_bytes=10)])
async def test_events_beyond_the_limit_are_refused_without_affecting_runs_that_end(
    tmp_path: Path, limits: EventLimits, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_daemon(tmp_path, event_limits=limits) as daemon, daemon.client() as client:
        await client.subscribe_event("x", "twin")
        await client.subscribe_event(DONE, "twin")
        await client.publish_event("x", "!wait")
        await daemon.model.until_waiting()
        for _ in range(2):
            await client.publish_event("x", "12345")
        assert await expect_error_code(client.publish_event("x", "1")) == 503
        assert (await client.send("crab", "!say fine")).content == "fine"
        await wait_until(lambda: f"the event {DONE!r} is lost" in caplog.text)
        states = daemon.daemon.bus.statistics()
        assert (states["refused"], states["lost"]) == (1, 1)
        (problem,) = (await client.get_stats()).problems
        assert problem.startswith("of the events, 1 were refused and 1 were lost, because")
        daemon.model.release()
        assert await list_fired_texts(daemon, client, "twin", "x") == ["!wait", "12345", "12345"]
        await client.publish_event("x", "1234567890")
        assert len(await list_fired_texts(daemon, client, "twin", "x")) == 4
        await client.reload()
        assert list((await client.get_stats()).problems) == []


@pytest.mark.req("events.fair")
async def test_a_slow_conversation_uses_only_one_of_the_concurrent_runs(tmp_path: Path) -> None:
    limits = EventLimits(event_runs=2)
    async with run_daemon(tmp_path, event_limits=limits) as daemon, daemon.client() as client:
        await client.subscribe_event("slow", "crab")
        await client.subscribe_event("quick", "twin")
        for _ in range(3):
            await client.publish_event("slow", "!wait")
        await daemon.model.until_waiting()
        async with follow_feed(daemon, agent="twin") as feed:
            await client.publish_event("quick", "hello")
            await feed.wait_until_done()
        for _ in range(3):
            await daemon.model.until_waiting()
            daemon.model.release()
        await wait_until_quiet(daemon)


@pytest.mark.req("events.busy")
@pytest.mark.one_loop
async def test_a_run_waits_while_the_engine_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        run_daemon(tmp_path, limits=RuntimeLimits(runs=1)) as daemon,
        daemon.client() as client,
    ):
        await client.subscribe_event("x", "twin")
        for times in (1, 2):
            turn = client.stream("crab", "!wait")
            await anext(turn)
            await daemon.model.until_waiting()
            await client.publish_event("x", "now")
            await wait_until(lambda: caplog.text.count("have to wait") == times)  # noqa: B023
            assert daemon.model.request_count == 2 * times - 1
            daemon.model.release()
            await collect_events(turn)
            assert await list_fired_texts(daemon, client, "twin", "x") == ["now"] * times


@pytest.mark.req("events.busy")
async def test_an_event_is_lost_and_logged_if_the_engine_stays_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_queue, "BUSY_TIMEOUT_SECONDS", 0)
    async with (
        run_daemon(tmp_path, limits=RuntimeLimits(runs=1)) as daemon,
        daemon.client() as client,
    ):
        await client.subscribe_event("x", "twin")
        turn = client.stream("crab", "!wait")
        await anext(turn)
        await daemon.model.until_waiting()
        await client.publish_event("x", "now")
        await wait_until(lambda: "twin was not told" in caplog.text)
        daemon.model.release()
        await collect_events(turn)
        await client.publish_event("x", "later")
        assert await list_fired_texts(daemon, client, "twin", "x") == ["later"]


@pytest.mark.req("events.stop")
async def test_a_stopping_daemon_fires_nothing_and_removes_no_subscription(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with model_server() as model:
        limits = EventLimits(event_runs=1)
        async with (
            run_daemon(tmp_path, model, event_limits=limits) as daemon,
            daemon.client() as client,
        ):
            await client.subscribe_event("x", "crab")
            await client.subscribe_event(FAILED, "twin", once=True)
            for source in ("x", "x"):
                await client.publish_event(source, "!wait")
            await model.until_waiting()
        assert "1 runs that events set off did not begin" in caplog.text
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            assert [source for _, source, *_ in await read_subscriptions(client)] == ["x", FAILED]
            assert model.request_count == 1


@pytest.mark.req("events.stop")
async def test_a_queued_payload_survives_a_restart(
    tmp_path: Path,
) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await client.subscribe_event("x", "twin")
            turn = client.stream("twin", "!wait", sender="event:x", detach=True)
            await anext(turn)
            await model.until_waiting()
            await client.publish_event("x", "now")
            await wait_until(lambda: daemon.daemon.runtime.running_count == 2)
            await turn.aclose()
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            messages = await read_conversation(client, "twin", "event:x")
            assert messages == [("user", "!wait"), ("user", "now")]


@pytest.mark.req("events.many")
@pytest.mark.one_loop
@pytest.mark.on_files
@pytest.mark.clock
async def test_a_thousand_subscribers_delay_no_client_and_run_a_few_at_a_time(
    tmp_path: Path,
) -> None:
    agents = {f"a{n}": f'prompt = "You are {n}."\n' for n in range(200)}
    limits = EventLimits(event_runs=8)
    async with model_server(is_recording=False) as model:
        async with run_daemon(tmp_path, model, agents=agents):
            pass
        path = get_subscription_path(tmp_path / "home")
        path.parent.mkdir()
        path.write_text("\n".join(format_table(n, "x", f"a{n % 200}") for n in range(1, 1001)))
        async with (
            run_daemon(tmp_path, model, event_limits=limits) as daemon,
            daemon.client() as client,
        ):
            at_once, longest = [0], [0.0]

            async def watch() -> None:
                while True:
                    before = time.thread_time() - read_steal_time()
                    await asyncio.sleep(0)
                    longest.append(time.thread_time() - read_steal_time() - before)
                    at_once.append(daemon.daemon.runtime.running_count)

            # Collect the garbage of earlier tests first.
            gc.collect()
            watching = asyncio.ensure_future(watch())
            try:
                await client.publish_event("x", "now")
                async with asyncio.timeout(PATIENCE):
                    while model.request_count < 1000:
                        await client.ping()
                await wait_until_quiet(daemon)
            finally:
                watching.cancel()
            assert model.request_count == 1000
            assert 1 < max(at_once) <= 8
            assert max(longest) < 0.05
            assert await read_conversation(client, "a7", "event:x") == [
                *([("user", "now"), ("assistant", "heard: now")] * 5),
            ]
