"""Text as it is written, questions and the stop button, with a gateway that is real."""

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
    async with run_dev_server(folder, agents=AGENTS) as on, open_device(on.url) as device:
        await on.start_gateway(await pair_with_device(device, on.url))
        yield on, device


@pytest_asyncio.fixture(loop_scope="session")
async def seat(
    browser: Browser, acting: tuple[DevServer, DeviceClient]
) -> AsyncIterator[tuple[PageTab, str]]:
    """A tab that looks at crab's session."""
    on, device = acting
    async with open_page_tab(browser, on.url) as made:
        await made.log_in(device)
        session = await device.wait_for_session("crab")
        await made.open_session(session.id)
        yield made, session.id


async def wait_until_working(one: PageTab, session: str) -> None:
    """Questions come another way than rows, and may be there before their turn began."""
    await one.wait_for("device.session(given).isWorking", session)


async def wait_until_idle(one: PageTab, session: str) -> None:
    """After `working`: before it, this would be so because nothing has begun."""
    await one.wait_for("!device.session(given).isWorking", session)


def log_script(session: str) -> str:
    """Notes each thing that could be seen, as a screen would draw it."""
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
async def test_text_grows_as_it_is_written_and_is_never_there_twice_or_not_at_all(
    acting: tuple[DevServer, DeviceClient], seat: tuple[PageTab, str]
) -> None:
    on, _ = acting
    one, session = seat
    await one.evaluate(log_script(session))
    words = "!say The tide \N{CRAB}\n!wait\n!say  comes in\n!wait\n!say  at noon."
    await one.evaluate(
        "device.session(given.id).send(given.words);", {"id": session, "words": words}
    )
    await one.wait_for("device.session(given).live?.text.startsWith('The tide')", session)
    await wait_until_working(one, session)
    await on.release_model()
    await one.wait_for("device.session(given).live?.text.endsWith('comes in')", session)
    await on.release_model()
    await wait_until_idle(one, session)
    seen = await one.evaluate("return window.seen;")
    whole = "The tide \N{CRAB} comes in at noon."
    assert seen[-1] == [None, whole]
    began = next(at for at, (live, _) in enumerate(seen) if live)
    for live, text in seen[began:]:
        # As live text until it is a row, and from then on as a row.
        assert (live is None) == (text == whole), seen
        assert live is None or whole.startswith(live)


@pytest.mark.req("page.live.guest")
async def test_a_guest_is_named_while_they_write(
    acting: tuple[DevServer, DeviceClient], seat: tuple[PageTab, str]
) -> None:
    on, _ = acting
    one, session = seat
    words = "@owl !say Who?\n!wait\n!say  Me."
    await one.evaluate(
        "device.session(given.id).send(given.words);", {"id": session, "words": words}
    )
    speaker = await one.wait_for("device.session(given).live?.speaker", session)
    assert (speaker["name"], speaker["kind"]) == ("owl", "guest")
    await wait_until_working(one, session)
    await on.release_model()
    await wait_until_idle(one, session)
    row = await one.wait_for(
        "tree(device.session(given).story.rows).find((row) => row.text === 'Who? Me.')", session
    )
    assert row["speaker"] == speaker


@pytest.mark.req("page.live.once")
async def test_a_row_and_an_answer_may_come_in_either_order(idle: PageTab) -> None:
    found = await idle.evaluate(
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
async def test_what_looked_like_its_row_and_was_not_is_shown_again(idle: PageTab) -> None:
    found = await idle.evaluate(
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
async def test_older_rows_that_are_read_meanwhile_are_not_taken_for_what_grows(
    idle: PageTab,
) -> None:
    found = await idle.evaluate(
        GROWING
        + """
        hear({ segment: 5, offset: 0, text: "I", next: 1 });
        row("c1", "I looked yesterday", { turn: "older" });
        row("c2", "", { turn: "older", ev: { t: "turn-end", status: "completed" } });
        return shown;"""
    )
    assert found == [["I", False]] * 3


async def wait_for_question(one: PageTab, session: str) -> Any:
    await wait_until_working(one, session)
    return await one.wait_for("device.session(given).questions[0]", session)


@pytest.mark.req("page.questions")
async def test_a_question_is_answered_by_the_first_and_the_second_is_told_so(
    acting: tuple[DevServer, DeviceClient], seat: tuple[PageTab, str], browser: Browser
) -> None:
    on, device = acting
    one, session = seat
    async with open_page_tab(browser, on.url) as other:
        await other.log_in(device)
        await other.open_session(session)
        await one.evaluate(
            "device.session(given.id).send(given.words);", {"id": session, "words": ASK}
        )
        question = await wait_for_question(one, session)
        assert (await wait_for_question(other, session))["id"] == question["id"]
        (form,) = question["questions"]
        assert (form["id"], form["header"], form["question"]) == ("q0", "Colour", "Which colour?")
        assert form["options"][0] == {"label": "red", "description": "warm"}
        assert (form["multiSelect"], form["allowCustom"]) == (False, True)
        given = {"id": session, "question": question["id"], "answers": {"q0": {"options": ["red"]}}}
        answer = "return device.session(given.id).answer(given.question, given.answers);"
        both = await asyncio.gather(one.evaluate(answer, given), other.evaluate(answer, given))
        assert sorted(each["already"] for each in both) == [False, True]
        for each in (one, other):
            await each.wait_for("!device.session(given).questions.length", session)
            await wait_until_idle(each, session)
        assert await one.evaluate(answer, given) == {"already": True}


@pytest.mark.req("page.questions")
async def test_a_question_can_be_dismissed(seat: tuple[PageTab, str]) -> None:
    one, session = seat
    await one.evaluate("device.session(given.id).send(given.words);", {"id": session, "words": ASK})
    question = await wait_for_question(one, session)
    given = {"id": session, "question": question["id"]}
    told = await one.evaluate("return device.session(given.id).dismiss(given.question);", given)
    assert told == {"already": False}
    await wait_until_idle(one, session)


@pytest.mark.req("page.questions")
async def test_questions_of_the_older_way_are_read_and_answered_in_it(idle: PageTab) -> None:
    found = await idle.evaluate(
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
async def test_stopping_ends_the_turn_and_is_said_so(seat: tuple[PageTab, str]) -> None:
    one, session = seat
    words = "!say I begin\n!hang"
    await one.evaluate(
        "device.session(given.id).send(given.words);", {"id": session, "words": words}
    )
    await one.wait_for("device.session(given).live", session)
    # So that it can be stopped, though rows come another way than text, and may be later.
    assert await one.evaluate("return device.session(given).isWorking;", session)
    await one.evaluate("await device.session(given).abort();", session)
    await wait_until_idle(one, session)
    last = await one.evaluate("return tree(device.session(given).story.rows).at(-1);", session)
    assert (last["kind"], last["status"]) == ("end", "cancelled")
    assert await one.evaluate("return device.session(given).live;", session) is None


@pytest.mark.req("page.record")
async def test_machines_are_named_and_who_is_there_is_told(
    acting: tuple[DevServer, DeviceClient], seat: tuple[PageTab, str]
) -> None:
    one, session = seat
    await one.wait_for(
        "(await device.machines())[0].active && device.session(given).isActive", session
    )
    (machine,) = await one.evaluate("return device.machines();")
    assert machine["name"] == f"crabtalk on {machine['host']}"
    told = await one.evaluate(
        "const { machine, host, agent, isActive, models } = device.session(given);"
        "return [machine, host, agent, isActive, models];",
        session,
    )
    assert told == [machine["id"], machine["host"], "crab", True, ["scripted"]]


@pytest.mark.req("page.calls.away")
async def test_a_machine_that_is_away_is_named_in_a_sentence(
    one: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await one.log_in(person)
    await one.open_session(session.id)
    told = await one.evaluate(
        "return device.session(given).abort().catch((error) => error.message);", session.id
    )
    assert told == "attic is not connected. Start crabtalk-web there."
