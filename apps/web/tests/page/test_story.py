"""The story: the rows of a conversation, from entries in any order."""

import json
import random
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from apps.web.tests.adapter.adapter_session import AdapterSession
from apps.web.tests.adapter.run_simulation import TURNS, RunPlan, RunSimulation
from apps.web.tests.page.page_tab import PageTab, read_json_lines
from crabtalk_web.stream import (
    AgentBody,
    Envelope,
    FileEvent,
    SessionBody,
    TextEvent,
    UserBody,
    decode_body,
    encode_envelope,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHANCE = st.randoms(use_true_random=False)
KILL = st.none() | st.integers(0, 60)
FIXTURES = Path(__file__).parents[1] / "stream" / "fixtures"
TOLD = """
const { Story } = await import("/story/story.js");
const { readMessage } = await import("/story/bodies.js");
const read = (bodies, from = 1) => bodies.map((body, at) =>
  readMessage({ seq: from + at, localId: `local ${from + at}`, createdAt: 5000 + at }, body))
  .filter((entry) => entry !== null);
const storyOf = (...batches) => {
  const story = new Story();
  for (const batch of batches) story.add(batch);
  return story;
};
"""


def build_bodies(envelopes: list[Any]) -> list[Any]:
    """Wrapped as a gateway wraps them."""
    meta = {"sentFrom": "crabtalk"}
    return [{"role": "session", "content": each, "meta": meta} for each in envelopes]


async def read_rows(tab: PageTab, given: list[Any]) -> Any:
    return await tab.evaluate(f"{TOLD} return tree(storyOf(read(given)).rows);", given)


def agent_body(number: int, event: dict[str, Any], **more: Any) -> dict[str, Any]:
    content = {"id": f"e{number}", "time": number, "role": "agent", "turn": "t1", "ev": event}
    return {"role": "session", "content": {**content, **more}, "meta": {"sentFrom": "crabtalk"}}


def tool_call_event(number: int, key: str, **args: Any) -> dict[str, Any]:
    words = {"name": "task", "title": key, "description": key}
    return {"t": "tool-call-start", "call": key, **words, "args": args}


def user_body(text: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": text}, "meta": {"sentFrom": "web"}}


def file_body(key: str, name: str) -> dict[str, Any]:
    event = {"t": "file", "ref": f"up/{key}", "name": name, "size": 3}
    return {"role": "session", "content": {"id": key, "time": 1, "role": "user", "ev": event}}


# ── Order ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("page.story.order")
@pytest.mark.req("page.story.once")
async def test_a_conversation_reads_the_same_in_any_order_of_arrival(shared_tab: PageTab) -> None:
    envelopes = read_json_lines(FIXTURES / "emitted.jsonl")
    shuffled = list(range(len(envelopes)))
    random.Random(11).shuffle(shuffled)
    found = await shared_tab.evaluate(
        f"""{TOLD}
        const entries = read(given.bodies);
        const pages = [];
        for (let to = entries.length; to > 0; to -= 7) {{
          pages.push(entries.slice(Math.max(0, to - 7), to));
        }}
        const rows = (...batches) => JSON.stringify(tree(storyOf(...batches).rows));
        const whole = rows(entries);
        return {{
          read: entries.length,
          rows: storyOf(entries).rows.length,
          backwards: rows(...pages) === whole,
          shuffled: rows(...given.order.map((at) => [entries[at]])) === whole,
          twice: rows(entries, entries, ...pages) === whole,
        }};""",
        {"bodies": build_bodies(envelopes), "order": shuffled},
    )
    assert found["read"] == len(envelopes)
    assert found["rows"] > 30
    assert (found["backwards"], found["shuffled"], found["twice"]) == (True, True, True)


@pytest.mark.req("page.story.whole")
async def test_every_text_of_any_conversation_is_in_one_row(shared_tab: PageTab) -> None:
    """The conversations of the adapter's own tests, with nested tasks, kills and all."""
    conversations = []

    @settings(max_examples=12, database=None, phases=[Phase.generate], derandomize=True)
    @hypothesis.given(TURNS, CHANCE, KILL)
    def carry_out(turns: list[RunPlan], chance: random.Random, kill_at: int | None) -> None:
        session = AdapterSession()
        session.handle_events(RunSimulation(chance, kill_at=kill_at).run_turns(turns))
        conversations.append(session.envelopes)

    carry_out()
    given = [build_bodies([json.loads(encode_envelope(e)) for e in each]) for each in conversations]
    found = await shared_tab.evaluate(
        f"""{TOLD}
        const flat = (rows) => rows.flatMap((row) => [row, ...flat(row.children ?? [])]);
        return given.map((bodies) => {{
          const rows = flat(storyOf(read(bodies)).rows);
          const words = rows.filter(({{ kind }}) => kind === "text" || kind === "user");
          return {{
            texts: words.map(({{ text }}) => text),
            running: rows.filter(({{ state }}) => state === "running").length,
            ids: new Set(rows.map(({{ id }}) => id)).size === rows.length,
          }};
        }});""",
        given,
    )
    assert sum(len(each) for each in conversations) > 100
    for envelopes, rows in zip(conversations, found, strict=True):
        words = sorted(e.ev.text for e in envelopes if isinstance(e.ev, TextEvent) and e.ev.text)
        assert sorted(rows["texts"]) == words
        assert (rows["running"], rows["ids"]) == (0, True)


@pytest.mark.req("page.story.order")
async def test_messages_of_people_are_placed_by_number_whatever_their_clocks(
    shared_tab: PageTab,
) -> None:
    late = agent_body(1, {"t": "text", "text": "before"}, time=9_000_000)
    early = agent_body(2, {"t": "text", "text": "after"}, id="e3", time=9_000_001)
    rows = await read_rows(shared_tab, [late, user_body("now"), early, user_body("and then")])
    assert [row["text"] for row in rows] == ["before", "now", "after", "and then"]


# ── Tasks and guests ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("page.story.tasks")
async def test_tasks_are_inside_the_calls_that_delegate_them_to_any_depth(
    shared_tab: PageTab,
) -> None:
    rows = await read_rows(shared_tab, build_bodies(read_json_lines(FIXTURES / "emitted.jsonl")))
    scout = next(row for row in rows if (row.get("task") or {}).get("name") == "scout")
    assert scout["task"] == {"name": "scout", "title": "Look around", "isActive": False}
    thought, inner = scout["children"]
    assert (thought["text"], thought["thinking"], thought["speaker"]["kind"]) == (
        "Looking",
        True,
        "task",
    )
    assert inner["task"]["title"] == "lift the stone"
    assert [row.get("text") or row["title"] for row in inner["children"]] == [
        "Nothing.",
        "Fetch `https://sea.example`",
    ]
    assert inner["children"][1]["state"] == "cut"


@pytest.mark.req("page.story.guests")
async def test_a_guest_has_a_name_and_a_colour_that_is_the_same_everywhere(
    shared_tab: PageTab,
) -> None:
    rows = await read_rows(shared_tab, build_bodies(read_json_lines(FIXTURES / "emitted.jsonl")))
    spoke = next(row for row in rows if row.get("text") == "I saw one.")
    speaker = spoke["speaker"]
    assert (speaker["name"], speaker["kind"]) == ("twin", "guest")
    hue = await shared_tab.evaluate("return (await import('/story/agents.js')).hueOf('twin');")
    assert speaker["hue"] == hue
    assert 0 <= hue < 360


@pytest.mark.req("page.story.orphans")
async def test_rows_of_a_task_are_shown_at_once_and_moved_into_its_call_later(
    shared_tab: PageTab,
) -> None:
    start = {"t": "start", "title": "owl — look"}
    later = [
        agent_body(2, start, subagent="cowl"),
        agent_body(3, {"t": "text", "text": "I look"}, subagent="cowl"),
        agent_body(4, {"t": "tool-call-end", "call": "k", "result": "seen"}),
    ]
    found = await shared_tab.evaluate(
        f"""{TOLD}
        const [first, ...later] = read(given);
        const story = storyOf(later);
        const row = story.rows[0];
        const before = {{ rows: tree(story.rows), revision: row.revision }};
        story.add([first]);
        const same = story.rows[0].children[0] === row;
        return {{ before, after: tree(story.rows), same, later: row.revision }};""",
        [
            agent_body(1, tool_call_event(1, "k", sessionSubagent="cowl", subagent_type="owl")),
            *later,
        ],
    )
    (alone,) = found["before"]["rows"]
    assert (alone["text"], alone["speaker"]["name"]) == ("I look", "owl")
    (host,) = found["after"]
    assert (host["kind"], host["state"], host["result"]) == ("tool", "done", "seen")
    assert [row["text"] for row in host["children"]] == ["I look"]
    assert found["same"] is True
    assert found["later"] > found["before"]["revision"]


@pytest.mark.req("page.story.revisions")
async def test_a_change_deep_inside_raises_the_revisions_around_it_and_no_others(
    shared_tab: PageTab,
) -> None:
    found = await shared_tab.evaluate(
        f"""{TOLD}
        const entries = read(given);
        const story = storyOf(entries.slice(0, 3));
        const [outer, beside] = story.rows;
        const look = () => [outer.revision, outer.children[0].revision, story.version];
        const [before, alone] = [look(), beside.revision];
        story.add(entries.slice(3));
        return {{ before, after: look(), beside: beside.revision - alone }};""",
        [
            agent_body(1, tool_call_event(1, "a", sessionSubagent="caa")),
            agent_body(2, tool_call_event(2, "b", sessionSubagent="cbb"), subagent="caa"),
            agent_body(3, {"t": "text", "text": "beside"}),
            agent_body(4, {"t": "text", "text": "deep"}, subagent="cbb"),
        ],
    )
    assert found["beside"] == 0
    assert all(
        after > before for before, after in zip(found["before"], found["after"], strict=True)
    )


# ── Turns ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("page.story.turns")
async def test_calls_of_an_ended_turn_are_not_shown_as_running(shared_tab: PageTab) -> None:
    found = await shared_tab.evaluate(
        f"""{TOLD}
        const entries = read(given);
        const story = storyOf(entries.slice(0, 2));
        const open = [story.isWorking, story.rows[0].state];
        story.add(entries.slice(2, 3));
        const cut = [story.isWorking, story.rows[0].state];
        story.add(entries.slice(3));
        const {{ isWorking: over, usage }} = story;
        return {{ open, cut, over, usage, rows: tree(story.rows) }};""",
        [
            agent_body(1, {"t": "turn-start"}),
            agent_body(2, tool_call_event(2, "k")),
            agent_body(3, {"t": "turn-start"}, turn="t2", id="e9"),
            agent_body(
                4,
                {"t": "turn-end", "status": "cancelled"},
                turn="t2",
                usage={"input_tokens": 5, "output_tokens": 9, "cache_read_input_tokens": 7},
            ),
        ],
    )
    assert found["open"] == [True, "running"]
    assert found["cut"] == [True, "cut"]
    assert found["over"] is False
    assert [row["kind"] for row in found["rows"]] == ["tool", "end"]
    assert found["rows"][1]["status"] == "cancelled"
    assert found["usage"] == {"used": 12, "window": 0}


# ── People ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("page.story.files")
async def test_files_are_shown_with_the_text_sent_after_them(shared_tab: PageTab) -> None:
    wrapped = file_body("cf2", "b.png")
    wrapped["content"] = {"type": "session", "data": wrapped["content"]}
    given = [
        file_body("cf1", "a.png"),
        wrapped,
        user_body("look"),
        user_body("again"),
        file_body("cf3", "c.png"),
    ]
    rows = await read_rows(shared_tab, given)
    assert [(row["text"], [file["name"] for file in row["files"]]) for row in rows] == [
        ("look", ["a.png", "b.png"]),
        ("again", []),
        ("", ["c.png"]),
    ]


@pytest.mark.req("page.story.waiting")
async def test_a_message_is_one_row_from_the_start(shared_tab: PageTab) -> None:
    found = await shared_tab.evaluate(
        f"""{TOLD}
        const story = storyOf(read(given.slice(0, 1)));
        const file = {{ id: "cf1", ref: "", name: "a", size: 3, mimeType: "", image: null }};
        const words = {{ time: 1, state: "waiting" }};
        const item = {{ ...words, localId: "local 3", order: 7, text: "hi", files: [file] }};
        const row = story.wait(item);
        story.wait({{ ...words, localId: "local 9", order: 6, text: "earlier" }});
        const waiting = tree(story.rows);
        story.wait({{ ...item, text: undefined, state: "sending", progress: 0.5 }});
        const sending = [row.state, row.progress, row.files[0].ref];
        const shown = row.files[0];
        story.add(read(given.slice(1, 2), 2)); // the file, before its words
        const between = story.rows.length;
        story.add(read(given.slice(2), 3));
        const at = story.rows.indexOf(row);
        const back = story.wait({{ ...item, text: "hi", state: "failed" }});
        story.drop("local 9");
        return {{
          waiting, sending, between, at, back, row: tree([row])[0], rows: tree(story.rows),
          same: row.files[0] === shown,
        }};""",
        [agent_body(1, {"t": "text", "text": "hello"}), file_body("cf1", "a"), user_body("hi")],
    )
    assert [row["text"] for row in found["waiting"]] == ["hello", "earlier", "hi"]
    assert found["sending"] == ["sending", 0.5, ""]
    assert found["between"] == 3
    assert found["at"] == 1
    assert found["back"] is None
    assert (found["row"]["state"], found["row"]["id"]) == ("sent", "local 3")
    assert found["row"]["files"][0]["ref"] == "up/cf1"
    assert found["same"] is True
    assert [row["text"] for row in found["rows"]] == ["hello", "hi"]


# ── Whatever comes ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("page.story.reading")
async def test_the_page_accepts_what_the_python_reader_accepts(shared_tab: PageTab) -> None:
    """And of the rest, only what it can draw."""
    given = [probe["value"] for probe in json.loads((FIXTURES / "bodies.json").read_text())]
    probes = json.loads((FIXTURES / "probes.json").read_text())
    given += [{"role": "session", "content": probe["value"]} for probe in probes]
    assert len(given) > 60
    found = await shared_tab.evaluate(
        f"""{TOLD} return given.map((body) =>
          readMessage({{ seq: 1, localId: "l", createdAt: 1 }}, body)?.ev.t ?? null);""",
        given,
    )
    for body, read in zip(given, found, strict=True):
        match decode_body(json.dumps(body)):
            case UserBody():
                assert read == "text", body
            case AgentBody():
                assert read in (None, "service"), body
            case SessionBody(content=envelope) if envelope.is_ignored:
                assert read is None, body
            case SessionBody(content=envelope) if envelope.role == "user":
                # Events that only agents have are not messages of people.
                assert read == (body_event(body)["t"] if is_said(envelope) else None), body
            case SessionBody():
                assert read == body_event(body)["t"], body


def is_said(envelope: Envelope) -> bool:
    return isinstance(envelope.ev, TextEvent | FileEvent)


def body_event(body: Any) -> Any:
    content = body["content"]
    return (content["data"] if content.get("type") == "session" else content)["ev"]


EVENTS: list[dict[str, Any]] = [
    {"t": "__proto__"},
    {"t": "constructor"},
    {"t": "toString", "text": "x"},
    {"t": ["text"], "text": "an array for a name"},
    {"t": "text"},
    {"t": "text", "text": None},
    {"t": "tool-call-start", "call": "c", "name": "n", "title": "t", "args": None},
    {"t": "tool-call-end", "call": {"a": 1}},
    {"t": "tool-call-end", "call": "never began", "result": {"x": 1}},
    {"t": "file", "ref": "r", "name": "n", "size": "big"},
    {"t": "file", "ref": "r", "name": "n", "size": -1},
    {"t": "turn-end", "status": "canceled"},
    {"t": "stop"},
    {"t": "hologram", "text": "from the future"},
]
HOSTILE: list[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"role": "user"},
    {"role": "user", "content": None},
    {"role": "user", "content": {"type": "text", "text": 7}},
    {"role": "session", "content": {"type": "session"}},
    {"role": "session", "content": {"type": "session", "data": None}},
    {"role": "__proto__", "content": {}},
    {"role": "agent", "content": {"type": "event", "data": {"type": "message", "message": 1}}},
    *(agent_body(20 + number, event) for number, event in enumerate(EVENTS)),
    agent_body(50, tool_call_event(50, "self", sessionSubagent="cself"), subagent="cself"),
    agent_body(51, tool_call_event(51, "ring1", sessionSubagent="cring1"), subagent="cring2"),
    agent_body(52, tool_call_event(52, "ring2", sessionSubagent="cring2"), subagent="cring1"),
    agent_body(53, tool_call_event(53, "again", sessionSubagent="cself")),
    agent_body(54, {"t": "text", "text": "bad time"}, time=1e300),
    agent_body(55, {"t": "text", "text": "no time"}, time=None),
    agent_body(56, {"t": "text", "text": "bad agent"}, subagent="<b>"),
    agent_body(57, {"t": "text", "text": "bad turn"}, turn=None),
    agent_body(58, {"t": "text", "text": "odd \ud83e half"}),
    agent_body(59, tool_call_event(59, "args", __proto__={"x": 1}, constructor="y")),
    agent_body(60, tool_call_event(60, "k"), role="user"),
]


@pytest.mark.req("page.story.hostile")
async def test_invalid_messages_are_skipped_and_valid_ones_read(shared_tab: PageTab) -> None:
    chain = [
        agent_body(
            100 + n,
            tool_call_event(100 + n, f"d{n}", sessionSubagent=f"cd{n}"),
            subagent=f"cd{n - 1}",
        )
        for n in range(1, 400)
    ]
    good = [agent_body(900, {"t": "text", "text": "good"}), user_body("fine")]
    random.Random(3).shuffle(chain)
    found = await shared_tab.evaluate(
        f"""{TOLD}
        const {{ rows }} = storyOf(read(given));
        const depth = (rows) => Math.max(0, ...rows.map((row) => 1 + depth(row.children ?? [])));
        const count = (rows) => rows.reduce((sum, row) => sum + 1 + count(row.children ?? []), 0);
        const texts = rows.map(({{ text }}) => text);
        return {{ texts, depth: depth(rows), count: count(rows) }};""",
        [*HOSTILE, *chain, *good],
    )
    assert found["texts"][-2:] == ["good", "fine"]
    assert 10 < found["depth"] < 100
    assert found["count"] > 400


@pytest.mark.req("page.story.large")
@pytest.mark.clock
async def test_ten_thousand_entries_become_rows_quickly(shared_tab: PageTab) -> None:
    given = []
    for number in range(2500):
        turn = f"t{number}"
        given += [
            agent_body(4 * number, {"t": "turn-start"}, turn=turn),
            agent_body(4 * number + 1, tool_call_event(0, "k"), turn=turn),
            agent_body(4 * number + 2, {"t": "tool-call-end", "call": "k"}, turn=turn),
            agent_body(4 * number + 3, {"t": "text", "text": "x"}, turn=turn),
        ]
    took = await shared_tab.evaluate(
        f"""{TOLD}
        const entries = read(given);
        const story = new Story();
        const start = performance.now();
        for (let to = entries.length; to > 0; to -= 200) story.add(entries.slice(to - 200, to));
        return [performance.now() - start, story.rows.length];""",
        given,
    )
    assert took[1] == 5000
    assert took[0] < 2000
