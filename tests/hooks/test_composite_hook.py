"""CompositeHook: prompts, scopes, questions and approvals, through a real socket."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from crabtalk.client import ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from crabtalk.runtime import ToolDispatch
from tests.daemon.in_process_daemon import FunctionTools, follow_feed, run_daemon, wait_until
from tests.model_server import model_server

# The behaviour does not depend on the event loop.
pytestmark = pytest.mark.one_loop

QUESTION = {
    "questions": [
        {
            "question": "Which beach?",
            "header": "Beach",
            "options": [{"label": "north"}, {"label": "south", "description": "sandy"}],
        }
    ]
}
ASK = f"!tool ask_user {json.dumps(QUESTION)}\n!then\n!say thanks"
SCOPED = 'prompt = "You are crab."\ntools = ["dig"]\n'
CAREFUL = 'prompt = "You are crab."\napprove = ["dig", "mcp*"]\n'
DIG = '!tool dig {"where": "here"}\n!then\n!say done'


async def answer_dig(call: ToolDispatch) -> str:
    return f"dug {json.loads(call.arguments).get('where')}"


def build_hooks() -> dict[str, FunctionTools]:
    return {"test": FunctionTools(dig=answer_dig, bury=answer_dig)}


async def wait_for_question(events: AsyncGenerator[Event, None]) -> wire.AskUserEvent:
    async for event in events:
        if isinstance(event, wire.AskUserEvent):
            return event
    raise AssertionError("no question was asked")


async def collect_results(events: AsyncGenerator[Event, None]) -> list[tuple[str, bool]]:
    return [(e.output, e.is_error) async for e in events if isinstance(e, wire.ToolResultEvent)]


# ── Prompts and scopes ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("hooks.prompt")
async def test_a_prompt_describes_the_environment_and_the_other_agents(tmp_path: Path) -> None:
    agents = {
        "crab": 'prompt = "You are crab."\n',
        "tide": 'prompt = "p"\ndescription = "Knows <tides>"\n',
        "shy": 'prompt = "p"\n',
    }
    async with (
        run_daemon(tmp_path, agents=agents, hooks=build_hooks()) as daemon,
        daemon.client() as client,
    ):
        await client.send("crab", "hi")
        prompt = daemon.model.requests[-1]["messages"][0]["content"]
        assert prompt.startswith("You are crab.\n\nRecall before ")
        assert "\n\n<environment>\nos: " in prompt
        assert "<agents>\n- tide: Knows &lt;tides&gt;\n</agents>" in prompt
        assert "shy" not in prompt
        await client.create_agent("late", "p", {"description": "Came later"})
        await client.send("crab", "hi")
        assert "- late: Came later" in daemon.model.requests[-1]["messages"][0]["content"]


@pytest.mark.req("hooks.prompt.small")
async def test_saying_hi_costs_less_than_three_kilobytes(tmp_path: Path) -> None:
    """The default agent with all its tools."""
    agents: dict[str, str] = {}
    async with run_daemon(tmp_path, agents=agents, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "hi")
        sent = json.dumps(daemon.model.requests[-1], separators=(",", ":"))
        assert len(sent) <= 3072


@pytest.mark.req("scope.enforced")
async def test_a_call_out_of_scope_is_refused_logged_and_sent_to_watching_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agents = {"crab": SCOPED}
    async with (
        run_daemon(tmp_path, agents=agents, hooks=build_hooks()) as daemon,
        daemon.client() as client,
    ):
        with caplog.at_level(logging.WARNING, "crabtalk.hooks"):
            script = "!tool bury {}\n!tool dig {}\n!then\n!say ok"
            results = await collect_results(client.stream("crab", script))
        offered = [tool["function"]["name"] for tool in daemon.model.requests[0]["tools"]]
    assert offered == ["dig"]
    assert sorted(results) == [("dug None", False), ("tool not available: bury", True)]
    assert [record.message for record in caplog.records] == [
        "security: a call out of scope was refused"
    ]


# ── Questions ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("ask.reply")
async def test_a_question_waits_for_the_reply_and_the_agent_gets_it_unchanged(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        stream = client.stream("crab", ASK)
        ask_event = await wait_for_question(stream)
        (question,) = ask_event.questions
        assert (question.question, question.header) == ("Which beach?", "Beach")
        assert [option.label for option in question.options] == ["north", "south"]
        await client.reply_to_ask("crab", '{"Which beach?": "south"}', ask_id=ask_event.ask_id)
        assert await collect_results(stream) == [('{"Which beach?": "south"}', False)]
        with pytest.raises(ServerError) as caught:
            await client.reply_to_ask("crab", "too late")
        assert caught.value.code == 404


@pytest.mark.req("ask.merged")
async def test_questions_of_one_step_are_one_ask_and_one_reply_answers_all(tmp_path: Path) -> None:
    script = f"{ASK.splitlines()[0]}\n{ASK}"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        stream = client.stream("crab", script)
        assert len((await wait_for_question(stream)).questions) == 2
        await client.reply_to_ask("crab", "north")
        assert await collect_results(stream) == [("north", False), ("north", False)]


@pytest.mark.req("ask.repeated")
async def test_a_client_that_connects_while_a_question_waits_gets_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        first = client.stream("crab", ASK, detach=True)
        ask_event = await wait_for_question(first)
        await first.aclose()
        second = client.stream("crab", "hello?")
        assert (await wait_for_question(second)).ask_id == ask_event.ask_id
        await client.reply_to_ask("crab", "north")
        ends = [event async for event in second if isinstance(event, wire.StreamEnd)]
        assert [end.error for end in ends] == [""]


@pytest.mark.req("ask.cancelled")
async def test_a_kill_ends_the_wait_and_withdraws_the_question(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        stream = client.stream("crab", ASK)
        await wait_for_question(stream)
        await client.kill("crab")
        ends = [event async for event in stream if isinstance(event, wire.StreamEnd)]
        assert ends[0].stop_reason == wire.STOP_REASON_CANCELLED
        with pytest.raises(ServerError):
            await client.reply_to_ask("crab", "north")


@pytest.mark.req("ask.deadline")
async def test_an_unanswered_question_is_an_error_for_the_agent(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        daemon.daemon.pending_questions.deadline = 0.01
        ((text, is_error),) = await collect_results(client.stream("crab", ASK))
        assert is_error
        assert text == "no answer within 0.01 s: Beach"


# ── Approvals ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("approve.asked")
@pytest.mark.parametrize("reply", ["yes", "Yes", '{{"{question}": "Yes"}}'])
async def test_a_call_that_needs_a_yes_runs_on_yes_only(tmp_path: Path, reply: str) -> None:
    agents = {"crab": CAREFUL}
    async with (
        run_daemon(tmp_path, agents=agents, hooks=build_hooks()) as daemon,
        daemon.client() as client,
    ):
        stream = client.stream("crab", DIG)
        (question,) = (await wait_for_question(stream)).questions
        assert "May crab call dig?" in question.question
        assert "where: here" in question.question
        text = question.question.replace("\n", "\\n")
        await client.reply_to_ask("crab", reply.format(question=text) if "{" in reply else reply)
        assert await collect_results(stream) == [("dug here", False)]


@pytest.mark.req("approve.no")
@pytest.mark.parametrize("reply", ["no", "maybe", "{}", None])
async def test_any_other_answer_or_no_answer_means_no(tmp_path: Path, reply: str | None) -> None:
    agents = {"crab": CAREFUL}
    async with (
        run_daemon(tmp_path, agents=agents, hooks=build_hooks()) as daemon,
        daemon.client() as client,
    ):
        if reply is None:
            daemon.daemon.pending_questions.deadline = 0.01
        stream = client.stream("crab", DIG)
        await wait_for_question(stream)
        if reply is not None:
            await client.reply_to_ask("crab", reply)
        ((text, is_error),) = await collect_results(stream)
        assert is_error
        assert text.startswith("permission denied: ")


@pytest.mark.req("approve.always")
async def test_always_applies_to_the_tool_in_this_conversation(tmp_path: Path) -> None:
    agents = {"crab": CAREFUL}
    async with (
        run_daemon(tmp_path, agents=agents, hooks=build_hooks()) as daemon,
        daemon.client() as client,
    ):
        stream = client.stream("crab", DIG)
        await wait_for_question(stream)
        await client.reply_to_ask("crab", "always here")
        assert await collect_results(stream) == [("dug here", False)]
        async with asyncio.timeout(10):
            assert await collect_results(client.stream("crab", DIG)) == [("dug here", False)]
        other = client.stream("crab", DIG, sender="user~bo")
        await wait_for_question(other)
        await other.aclose()


@pytest.mark.req("approve.always.kept")
async def test_always_is_remembered_with_the_conversation(tmp_path: Path) -> None:
    agents = {"crab": CAREFUL}
    async with model_server(summary="They dug.") as model:
        async with (
            run_daemon(tmp_path, model, agents=agents, hooks=build_hooks()) as daemon,
            daemon.client() as client,
        ):
            stream = client.stream("crab", DIG)
            await wait_for_question(stream)
            await client.reply_to_ask("crab", "always here")
            await collect_results(stream)
            await client.compact("crab")
        async with (
            run_daemon(tmp_path, model, hooks=build_hooks()) as daemon,
            daemon.client() as client,
        ):
            async with asyncio.timeout(10):
                assert await collect_results(client.stream("crab", DIG)) == [("dug here", False)]
            (listed,) = (await client.list_conversations()).conversations
            await client.delete_conversation(listed.file_path)
            anew = client.stream("crab", DIG)
            await wait_for_question(anew)
            await anew.aclose()


# ── On the feed ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("ask.feed")
async def test_a_new_subscriber_gets_the_pending_question_first(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        stream = client.stream("crab", ASK, detach=True)
        ask_event = await wait_for_question(stream)
        await stream.aclose()
        async with (
            follow_feed(daemon, agent="twin", all_kinds=True) as of_another,
            follow_feed(daemon, agent="crab", all_kinds=True) as feed,
        ):
            await wait_until(lambda: bool(feed.events))
            first = feed.events[0]
            assert (first.kind, first.content, first.ask) == (wire.ASK_USER, "Beach", ask_event)
            await client.reply_to_ask("crab", "north", ask_id=first.ask.ask_id)
            assert wire.TOOLS_COMPLETE in [event.kind for event in await feed.wait_until_done()]
        assert of_another.events == []


@pytest.mark.req("ask.feed")
async def test_a_question_is_on_the_feed_when_it_is_asked_if_all_kinds_are_wanted(
    tmp_path: Path,
) -> None:
    async with (
        run_daemon(tmp_path, hooks={}) as daemon,
        daemon.client() as client,
        follow_feed(daemon, all_kinds=True) as all_kinds,
        follow_feed(daemon) as plain,
    ):
        stream = client.stream("crab", ASK)
        await wait_for_question(stream)
        await client.reply_to_ask("crab", "north")
        await collect_results(stream)
        results = [event.kind for event in await all_kinds.wait_until_done()]
        assert results.index(wire.TOOL_START) < results.index(wire.ASK_USER)
        assert wire.ASK_USER not in [event.kind for event in await plain.wait_until_done()]


@pytest.mark.req("scope.seen")
async def test_a_breach_of_scope_is_on_the_feed(tmp_path: Path) -> None:
    agents = {"crab": SCOPED}
    async with (
        run_daemon(tmp_path, agents=agents, hooks=build_hooks()) as daemon,
        daemon.client() as client,
        follow_feed(daemon, all_kinds=True) as feed,
    ):
        await client.send("crab", "!tool bury {}\n!then\n!say ok")
        (breach,) = [e for e in await feed.wait_until_done() if e.kind == wire.REFUSED]
    assert breach.content == "tool not available: bury"
    assert [call.name for call in breach.tool_calls] == ["bury"]
    assert breach.call_id == breach.tool_calls[0].id


# ── Titles ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("title.tool")
async def test_an_agent_names_its_conversation(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        script = '!tool set_title {"title": " Tides\\n of June "}\n!then\n!say ok'
        assert await collect_results(client.stream("crab", script)) == [("ok", False)]
        (listed,) = (await client.list_conversations()).conversations
        assert listed.title == "Tides of June"


# ── Skills ──────────────────────────────────────────────────────────────────────────────────────

SKILL = """---
name: tides
description: Reads tide tables
---
Look at the moon.
"""


@pytest.mark.req("skill.wire")
async def test_skills_of_the_home_are_listed_resolved_and_used(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        (daemon.home / "skills" / "sea" / "tides").mkdir(parents=True)
        (daemon.home / "skills" / "sea" / "tides" / "SKILL.md").write_text(SKILL)
        listed = {skill.name: skill for skill in (await client.list_skills()).skills}
        assert (listed["tides"].source, listed["tides"].source_kind) == ("local", wire.LOCAL)
        await client.send("crab", "/tides for June")
        said = daemon.read_messages()[0]["text"]
        assert said == 'for June\n\n<skill name="tides">\nLook at the moon.\n</skill>'
        for name in ("skill", "skill_tool"):
            script = f'!tool {name} {{"name": "tides"}}\n!then\n!say ok'
            ((text, is_error),) = await collect_results(client.stream("crab", script))
            assert not is_error
            assert text.endswith("Look at the moon.")
