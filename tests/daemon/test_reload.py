"""Reloading while turns run, and starting with invalid settings."""

import asyncio
from pathlib import Path

import pytest

from crabtalk.protocol import wire
from crabtalk.runtime import ToolDispatch
from tests.daemon.in_process_daemon import (
    CONFIG,
    collect_events,
    collect_text,
    expect_error_code,
    follow_feed,
    get_stream_end,
    list_request_messages,
    run_daemon,
    wait_for_event,
    wait_until,
)
from tests.model_server import model_server

# The result does not depend on the event loop.
pytestmark = pytest.mark.one_loop

DOWN = CONFIG.replace("{url}", "http://127.0.0.1:1/v1")


async def look_around(call: ToolDispatch) -> str:
    return "waves"


@pytest.mark.req("reload.agents")
async def test_added_changed_and_removed_agents_are_seen_after_a_reload(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "before")
        daemon.agent_file("owl").write_text('prompt = "You are owl."\n')
        daemon.agent_file("crab").write_text('prompt = "You are changed."\n')
        daemon.agent_file("twin").unlink()
        assert await expect_error_code(client.send("owl", "hello")) == 404
        await client.reload()
        assert [agent.name for agent in (await client.list_agents()).agents] == ["crab", "owl"]
        await client.send("crab", "after")
        request = daemon.model.requests[-1]
        assert list_request_messages(request)[:2] == [
            ("system", "You are changed."),
            ("user", "before"),
        ]
        assert (await client.send("owl", "hello")).agent == "owl"
        assert await expect_error_code(client.send("twin", "hello")) == 404


@pytest.mark.req("reload.runs_go_on")
async def test_a_run_keeps_its_provider_and_new_turns_use_the_new_one(
    tmp_path: Path,
) -> None:
    """The feed and the steering of the run still work."""
    async with (
        model_server() as new,
        run_daemon(tmp_path, tools={"look": look_around}) as daemon,
        daemon.client() as client,
        follow_feed(daemon) as feed,
    ):
        running = client.stream("crab", "!wait\n!tool look {}", sender="old")
        start = await wait_for_event(running, wire.StreamStart)
        await daemon.model.until_waiting()
        daemon.write_config(CONFIG.replace("{url}", new.url))
        await client.reload()
        await client.steer_session("crab", "!say steered", sender="old")
        answer = await client.send("crab", "!say from the new one", sender="new")
        assert answer.content == "from the new one"
        daemon.model.release()
        assert collect_text(await collect_events(running)) == "steered"
        assert len(daemon.model.requests) == 2
        assert len(new.requests) == 1
        events = await feed.wait_until_done(2)
        assert {event.run_id for event in events if event.sender == "old"} == {start.run_id}
        assert (await client.send("crab", "hello", sender="old")).content == "heard: hello"
        assert len(new.requests) == 2
        await wait_until(lambda: not daemon.model.connections)  # the old provider is closed


@pytest.mark.req("reload.model")
async def test_the_default_model_is_looked_up_after_a_reload_if_it_was_known_before(
    tmp_path: Path,
) -> None:
    any_model = CONFIG.replace('model = "scripted"\n', "")
    async with run_daemon(tmp_path, config=any_model) as daemon, daemon.client() as client:
        await client.reload()
        assert not daemon.daemon.models.active  # no model was needed yet, so none is looked up
        await client.send("crab", "hello")
        daemon.model.models[:] = ["another"]
        await asyncio.gather(*(client.reload() for _ in range(5)))
        await wait_until(lambda: daemon.daemon.models.active == "another")


@pytest.mark.req("reload.refused")
@pytest.mark.parametrize(
    "broken",
    [
        b"[llm",
        b"llm = 3\n",
        b"[llm]\nbase_url = 3\n",
        b'[[providers]]\nname = "p"\nkind = "wood"\n',
        b'[[providers]]\nname = "p"\n[[providers]]\nname = "p"\n',
        b"# \xff\n",
        b"limits = 3\n",
        b"[limits]\nruns = 0\n",
        b'[storage]\nurl = "wood:"\n',
    ],
)
async def test_an_invalid_config_is_refused_and_the_old_one_stays(
    tmp_path: Path, broken: bytes
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "before")
        (daemon.home / "config.toml").write_bytes(broken)
        daemon.agent_file("owl").write_text('prompt = "You are owl."\n')
        assert await expect_error_code(client.reload()) == 500
        assert (await client.send("crab", "after")).content == "heard: after"
        assert len(list_request_messages(daemon.model.requests[-1])) == 4
        assert await expect_error_code(client.get_agent("owl")) == 404  # nothing was reloaded
        assert list((await client.get_stats()).problems) == []


@pytest.mark.req("config.check")
async def test_unknown_keys_in_the_configuration_are_a_problem_until_they_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        run_daemon(tmp_path, config=f"[daemn]\n{CONFIG}") as daemon,
        daemon.client() as client,
    ):
        sentence = f"{daemon.home}/config.toml has {{}}, which means nothing here and is ignored"
        await client.list_agents()  # answered when it is ready
        assert list((await client.get_stats()).problems) == [sentence.format("[daemn]")]
        url = daemon.model.url
        daemon.write_config(f'[daemon]\nmodl = "m"\n{CONFIG.replace("{url}", url)}')
        await client.reload()
        assert list((await client.get_stats()).problems) == [sentence.format("modl in [daemon]")]
        assert sentence.format("modl in [daemon]") in caplog.messages
        daemon.write_config(CONFIG.replace("{url}", url))
        await client.reload()
        assert list((await client.get_stats()).problems) == []


@pytest.mark.req("reload.runs_go_on")
async def test_reloads_do_not_disturb_concurrent_turns(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        async with asyncio.timeout(20):
            turns = asyncio.gather(
                *(client.send("crab", f"turn {n}", sender=f"s{n % 5}") for n in range(40))
            )
            await asyncio.gather(*(client.reload() for _ in range(5)))
            answers = await turns
        assert [a.content for a in answers] == [f"heard: turn {n}" for n in range(40)]


@pytest.mark.req("daemon.start.provider_down")
async def test_an_unreachable_provider_only_fails_turns(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, config=DOWN) as daemon, daemon.client() as client:
        await client.ping()
        end = get_stream_end(await collect_events(client.stream("crab", "hello")))
        assert end.stop_reason == wire.STOP_REASON_ERROR
        assert end.error.startswith("llm: ")
        assert await expect_error_code(client.send("crab", "are you there?")) == 500
        assert await expect_error_code(client.compact("crab")) == 500
        await client.ping()
        assert (await client.get_stats()).registered_agents == 2
        daemon.write_config(CONFIG.replace("{url}", daemon.model.url))
        await client.reload()
        assert (await client.send("crab", "and now?")).content == "heard: and now?"
        assert [text for _, text in list_request_messages(daemon.model.requests[0])[1:]] == [
            *("hello", "are you there?", "and now?"),
        ]


@pytest.mark.req("daemon.start.bad_settings")
async def test_invalid_settings_name_the_file_the_correction_and_the_reload_command(
    tmp_path: Path,
) -> None:
    async with (
        run_daemon(tmp_path, config="[llm]\nbase_url = 3\n") as daemon,
        daemon.client() as client,
    ):
        sentence = (
            f"{daemon.home}/config.toml: base_url in [llm] must be text: "
            f'write it in "quotes"; mend it, then `crabtalkd reload --home {daemon.home}`'
        )
        assert list((await client.get_stats()).problems) == [sentence]
        assert (
            get_stream_end(await collect_events(client.stream("crab", "hello"))).error == sentence
        )


@pytest.mark.req("daemon.start.bad_settings")
async def test_the_no_model_error_has_the_setup_command_for_this_home(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        registry = await daemon.daemon.models.open_registry()
        assert registry.no_model_message == (
            f"no model is set up; `crabtalkd setup --home {daemon.home}` helps with that"
        )


@pytest.mark.req("daemon.start.bad_settings")
async def test_invalid_settings_are_listed_as_a_problem(tmp_path: Path) -> None:
    config = '[[providers]]\nname = "p"\nkind = "wood"\n'
    async with run_daemon(tmp_path, config=config) as daemon, daemon.client() as client:
        (problem,) = (await client.get_stats()).problems
        assert "wood" in problem
        assert "wood" in get_stream_end(await collect_events(client.stream("crab", "hello"))).error
        assert await expect_error_code(client.list_models()) == 500
        daemon.write_config(CONFIG.replace("{url}", daemon.model.url))
        await client.reload()
        assert list((await client.get_stats()).problems) == []
        assert (await client.send("crab", "hello")).content == "heard: hello"
