"""Live text, questions and the stop button, with a real gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from apps.web.dev_server import DevServer, run_dev_server
from apps.web.tests.gateway.device_client import DeviceClient, open_device
from apps.web.tests.gateway.web_gateway_world import pair_with_device
from apps.web.tests.page.fake_gateway import create_session
from apps.web.tests.page.page_tab import PageTab, open_page_tab
from tests.daemon.in_process_daemon import script_tool_calls

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = {name: f'prompt = "You are {name}."\n' for name in ("crab", "owl")}
GROWING = """
const { Growing } = await import("/device/growing.js");
const growing = new Growing();
const shown = [];
const look = () => shown.push(growing.shown && [growing.shown.text, growing.shown.thinking]);
const hear = (told) => {
  growing.hear({ thinking: false, turn: "t", subagent: "", became: {}, ...told });
  look();
};
const row = (id, text, more = {}) => {
  const ev = { t: "text", text, thinking: false };
  growing.settle({ id, subagent: "", turn: "t", ev, ...more });
  look();
};
"""
ASK = script_tool_calls(
    [
        (
            "ask_user",
            {
                "questions": [
                    {
                        "question": "Which colour?",
                        "header": "Colour",
                        "options": [{"label": "red", "description": "warm"}, "blue"],
                    }
                ]
            },
        )
    ]
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def acting(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[DevServer, DeviceClient]]:
    folder: Path = tmp_path_factory.mktemp("stage")
    async with run_dev_server(folder, agents=AGENTS) as server, open_device(server.url) as device:
        await server.start_gateway(await pair_with_device(device, server.url))
        yield server, device


@pytest_asyncio.fixture(loop_scope="session")
async def session_tab(
    browser: Browser, acting: tuple[DevServer, DeviceClient]
) -> AsyncIterator[tuple[PageTab, str]]:
    """A tab with crab's session open."""
    server, device = acting
    async with open_page_tab(browser, server.url) as made:
        await made.log_in(device)
        session = await device.wait_for_session("crab")
        await made.open_session(session.id)
        yield made, session.id


async def wait_until_working(tab: PageTab, session: str) -> None:
    """Questions take another way than rows, and may arrive before their turn has begun."""
    await tab.wait_for("device.session(given).isWorking", session)


async def wait_until_idle(tab: PageTab, session: str) -> None:
    """Use after `wait_until_working`: before, it would return at once because nothing has begun."""
    await tab.wait_for("!device.session(given).isWorking", session)


def log_script(session: str) -> str:
    """Records every state that a screen would draw."""
    return f"""
      const session = device.session({session!r});
      window.seen = [];
      const note = () => seen.push([
        session.live?.text ?? null,
        session.story.rows.filter((row) => row.kind === "text").at(-1)?.text ?? null,
      ]);
      session.addEventListener("change", note);
      session.addEventListener("live", note);
    """


@pytest.mark.req("page.live.grows")
@pytest.mark.req("page.live.once")
async def test_growing_text_is_never_shown_twice_or_missing(
    acting: tuple[DevServer, DeviceClient], session_tab: tuple[PageTab, str]
) -> None:
    server, _ = acting
    tab, session = session_tab
    await tab.evaluate(log_script(session))
    words = "!say The tide \N{CRAB}\n!wait\n!say  comes in\n!wait\n!say  at noon."
    await tab.evaluate(
        "device.session(given.id).send(given.words);", {"id": session, "words": words}
    )
    await tab.wait_for("device.session(given).live?.text.startsWith('The tide')", session)
    await wait_until_working(tab, session)
    await server.release_model()
    await tab.wait_for("device.session(given).live?.text.endsWith('comes in')", session)
    await server.release_model()
    await wait_until_idle(tab, session)
    seen = await tab.evaluate("return window.seen;")
    whole = "The tide \N{CRAB} comes in at noon."
    assert seen[-1] == [None, whole]
    began = next(at for at, (live, _) in enumerate(seen) if live)
    for live, text in seen[began:]:
        # Live text until it is a row, and from then on a row.
        assert (live is None) == (text == whole), seen
        assert live is None or whole.startswith(live)


@pytest.mark.req("page.live.guest")
async def test_a_guest_is_named_while_they_write(
    acting: tuple[DevServer, DeviceClient], session_tab: tuple[PageTab, str]
) -> None:
    server, _ = acting
    tab, session = session_tab
    words = "@owl !say Who?\n!wait\n!say  Me."
    await tab.evaluate(
        "device.session(given.id).send(given.words);", {"id": session, "words": words}
    )
    speaker = await tab.wait_for("device.session(given).live?.speaker", session)
    assert (speaker["name"], speaker["kind"]) == ("owl", "guest")
    await wait_until_working(tab, session)
    await server.release_model()
    await wait_until_idle(tab, session)
    row = await tab.wait_for(
        "tree(device.session(given).story.rows).find((row) => row.text === 'Who? Me.')", session
    )
    assert row["speaker"] == speaker


@pytest.mark.req("page.live.once")
async def test_a_row_and_an_answer_may_come_in_either_order(shared_tab: PageTab) -> None:
    found = await shared_tab.evaluate(
        GROWING
        + """
        hear({ segment: 5, offset: 0, text: "He", next: 2 });
        hear({ segment: 5, offset: 2, text: "llo", next: 5 });
        row("c1", "Hello you"); // before the rest of the piece was told
        hear({ segment: 6, offset: 0, text: "", next: 0, became: { 5: "c1" } });
        hear({ segment: 6, offset: 0, text: "More", next: 4 });
        hear({ segment: 7, offset: 0, text: "Then", next: 4, became: { 6: "c2" } });
        row("c2", "More"); // after the next piece was begun
        hear({ segment: 8, offset: 0, text: "", next: 0, became: { 7: "" } }); // dropped
        return shown;"""
    )
    assert found == [
        ["He", False],
        ["Hello", False],
        None,
        None,
        ["More", False],
        ["More", False],
        ["Then", False],
        None,
    ]


@pytest.mark.req("page.live.once")
async def test_text_matched_to_the_wrong_row_is_shown_again(shared_tab: PageTab) -> None:
    found = await shared_tab.evaluate(
        GROWING
        + """
        hear({ segment: 5, offset: 0, text: "A", next: 1 });
        row("c0", "Another one's words, that begin alike");
        hear({ segment: 5, offset: 1, text: "h", next: 2 });
        hear({ segment: 5, offset: 0, text: "out of place", next: 12 });
        row("c9", "thoughts", { ev: { t: "text", text: "Ah", thinking: true } });
        row("c8", "", { ev: { t: "turn-end", status: "completed" } });
        hear({ segment: 5, offset: 2, text: "late", next: 6 });
        return shown;"""
    )
    assert found == [
        ["A", False],
        None,
        ["Ah", False],
        ["Ah", False],
        ["Ah", False],
        None,
        None,
    ]


@pytest.mark.req("page.live.once")
async def test_older_rows_are_not_mistaken_for_growing_text(
    shared_tab: PageTab,
) -> None:
    found = await shared_tab.evaluate(
        GROWING
        + """
        hear({ segment: 5, offset: 0, text: "I", next: 1 });
        row("c1", "I looked yesterday", { turn: "older" });
        row("c2", "", { turn: "older", ev: { t: "turn-end", status: "completed" } });
        return shown;"""
    )
    assert found == [["I", False]] * 3


async def wait_for_question(tab: PageTab, session: str) -> Any:
    await wait_until_working(tab, session)
    return await tab.wait_for("device.session(given).questions[0]", session)


@pytest.mark.req("page.questions")
async def test_the_first_answer_to_a_question_counts_and_the_second_device_is_told(
    acting: tuple[DevServer, DeviceClient], session_tab: tuple[PageTab, str], browser: Browser
) -> None:
    server, device = acting
    tab, session = session_tab
    async with open_page_tab(browser, server.url) as other:
        await other.log_in(device)
        await other.open_session(session)
        await tab.evaluate(
            "device.session(given.id).send(given.words);", {"id": session, "words": ASK}
        )
        question = await wait_for_question(tab, session)
        assert (await wait_for_question(other, session))["id"] == question["id"]
        (form,) = question["questions"]
        assert (form["id"], form["header"], form["question"]) == ("q0", "Colour", "Which colour?")
        assert form["options"][0] == {"label": "red", "description": "warm"}
        assert (form["multiSelect"], form["allowCustom"]) == (False, True)
        given = {"id": session, "question": question["id"], "answers": {"q0": {"options": ["red"]}}}
        answer = "return device.session(given.id).answer(given.question, given.answers);"
        both = await asyncio.gather(tab.evaluate(answer, given), other.evaluate(answer, given))
        assert sorted(each["already"] for each in both) == [False, True]
        for each in (tab, other):
            await each.wait_for("!device.session(given).questions.length", session)
            await wait_until_idle(each, session)
        assert await tab.evaluate(answer, given) == {"already": True}


@pytest.mark.req("page.questions")
async def test_a_question_can_be_dismissed(session_tab: tuple[PageTab, str]) -> None:
    tab, session = session_tab
    await tab.evaluate("device.session(given.id).send(given.words);", {"id": session, "words": ASK})
    question = await wait_for_question(tab, session)
    given = {"id": session, "question": question["id"]}
    result = await tab.evaluate("return device.session(given.id).dismiss(given.question);", given)
    assert result == {"already": False}
    await wait_until_idle(tab, session)


@pytest.mark.req("page.questions")
async def test_questions_in_the_older_format_are_answered_in_it(shared_tab: PageTab) -> None:
    found = await shared_tab.evaluate(
        """const { answerTo, questionsOf } = await import("/device/questions.js");
        const state = {
          requests: { k1: { tool: "AskUserQuestion", createdAt: 2, toolUseId: "k1", arguments: {
            questions: [{ question: "Why?", header: "h", options: [{ label: "So" }] }] } },
            k2: { tool: "Bash" }, k3: null },
          communications: { c1: { kind: "form", createdAt: 1, form: { questions: [{ id: "q9" }] } },
            c2: { kind: "hologram" }, c3: { kind: "form" } },
        };
        const [form, older] = questionsOf(state);
        return {
          ids: [form.id, older.id, older.call],
          nothing: [questionsOf(null), questionsOf({ requests: 7, communications: [] })],
          answers: [
            answerTo(form, { q9: { options: [], custom: "x" } }),
            answerTo(form, null),
            answerTo(older, { q0: { options: ["So"], custom: "and so" } }),
            answerTo(older, null),
          ],
        };"""
    )
    assert found["ids"] == ["c1", "k1", "k1"]
    assert found["nothing"] == [[], []]
    answered = {"id": "c1", "kind": "form", "status": "answered"}
    assert found["answers"] == [
        ["communication", {**answered, "answers": {"q9": {"options": [], "custom": "x"}}}],
        ["communication", {"id": "c1", "kind": "form", "status": "cancelled"}],
        [
            "permission",
            {"id": "k1", "approved": True, "updatedInput": {"answers": {"Why?": "So, and so"}}},
        ],
        ["permission", {"id": "k1", "approved": False}],
    ]


@pytest.mark.req("page.stop")
async def test_stopping_ends_the_turn_and_is_shown(session_tab: tuple[PageTab, str]) -> None:
    tab, session = session_tab
    words = "!say I begin\n!hang"
    await tab.evaluate(
        "device.session(given.id).send(given.words);", {"id": session, "words": words}
    )
    await tab.wait_for("device.session(given).live", session)
    # So that it can be stopped although rows may arrive later than text.
    assert await tab.evaluate("return device.session(given).isWorking;", session)
    await tab.evaluate("await device.session(given).abort();", session)
    await wait_until_idle(tab, session)
    last = await tab.evaluate("return tree(device.session(given).story.rows).at(-1);", session)
    assert (last["kind"], last["status"]) == ("end", "cancelled")
    assert await tab.evaluate("return device.session(given).live;", session) is None


@pytest.mark.req("page.record")
async def test_machines_are_named_with_their_presence(
    acting: tuple[DevServer, DeviceClient], session_tab: tuple[PageTab, str]
) -> None:
    tab, session = session_tab
    await tab.wait_for(
        "(await device.machines())[0].active && device.session(given).isActive", session
    )
    (machine,) = await tab.evaluate("return device.machines();")
    assert machine["name"] == f"crabtalk on {machine['host']}"
    result = await tab.evaluate(
        "const { machine, host, agent, isActive, models } = device.session(given);"
        "return [machine, host, agent, isActive, models];",
        session,
    )
    assert result == [machine["id"], machine["host"], "crab", True, ["scripted"]]


@pytest.mark.req("page.calls.away")
async def test_an_offline_machine_is_named_in_the_error(tab: PageTab, person: DeviceClient) -> None:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    result = await tab.evaluate(
        "return device.session(given).abort().catch((error) => error.message);", session.id
    )
    assert result == "attic is not connected. Start crabtalk-web there."
