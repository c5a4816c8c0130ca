"""A conversation with every kind of event, as the adapter writes it; stored in
`fixtures/emitted.jsonl`.

python -m apps.web.tests.adapter.example_session > apps/web/tests/stream/fixtures/emitted.jsonl
"""

import sys

from apps.web.tests.adapter.adapter_session import (
    DONE,
    KILLED,
    AdapterSession,
    make_call,
    make_delegate_call,
    make_parent,
    make_tool_returned,
    make_tools_called,
)
from crabtalk_web.adapter.run_events import (
    AgentQuestion,
    AnswerOption,
    ConversationCompacted,
    EndReason,
    QuestionsAsked,
    RunBegan,
    RunEnded,
    RunSteered,
    SegmentEnded,
    StepEnded,
    TextPiece,
    TokensUsed,
)
from crabtalk_web.stream import FileEvent, ImagePreview, encode_envelope

TASKS = make_delegate_call(
    "toolu_2", {"agent": "scout", "message": "Look around\nand report"}, {"message": "dig"}
)
LATER = make_delegate_call("toolu_3", {"message": "watch the tide"}, background=True)
PICTURE = FileEvent(
    ref="sessions/s/attachments/1.enc",
    name="beach 🦀.png",
    size=1234,
    mime_type="image/png",
    image=ImagePreview(64, 48, "3OcRJYB4d3h/iIeHeEh3eIhw+j3A"),
)


def build_example() -> list[str]:
    """Encoded envelopes, one a line."""
    session = AdapterSession()
    for act in (add_tools, add_tasks, add_guest, add_background, add_failures, add_hostile_input):
        act(session)
    return [encode_envelope(envelope).decode() for envelope in session.envelopes]


def add_tools(session: AdapterSession) -> None:
    session.handle_event(RunBegan("What is on the beach?"), "r1")
    session.handle_event(TextPiece("They want to know\n\n", thinking=True), "r1")
    session.handle_event(SegmentEnded(), "r1")
    session.handle_event(TextPiece("Let me *look*. 🦀"), "r1")
    session.handle_event(
        make_tools_called(
            make_call("toolu_0", command="ls"), make_call("toolu_1", "github__list", n=1)
        ),
        "r1",
    )
    session.handle_event(
        make_tool_returned("toolu_1", "no such beach", is_error=True, duration_ms=12), "r1"
    )
    session.handle_event(make_tool_returned("toolu_0", "sand\n" * 4000), "r1")
    session.handle_event(StepEnded(), "r1")
    session.handle_event(TokensUsed(812, 46, 500), "r1")
    session.check_envelopes(session.adapter.write_file(PICTURE, session.now, run="r1"))
    session.handle_event(RunSteered("And the sea?"), "r1")
    options = (AnswerOption("Yes", "today"), AnswerOption("No"))
    session.handle_event(
        make_tools_called(make_call("toolu_a", "ask_user", questions=[{"header": "Swim"}])), "r1"
    )
    session.handle_event(
        QuestionsAsked("r1-1", (AgentQuestion("Shall we swim?", "Swim", options),)), "r1"
    )
    session.handle_event(make_tool_returned("toolu_a", "Yes"), "r1")
    session.handle_event(
        make_tools_called(make_call("toolu_b", "edit", path="a", old_string="x", new_string="y")),
        "r1",
    )
    session.handle_event(
        QuestionsAsked("r1-2", (AgentQuestion("May crab call edit?", "edit", options),)), "r1"
    )
    session.check_envelopes(session.adapter.close_ask("r1-2", session.now))
    session.handle_event(make_tool_returned("toolu_b"), "r1")
    session.handle_event(TextPiece("A paragraph.\n\n" * 350), "r1")
    session.handle_event(DONE, "r1")


def add_tasks(session: AdapterSession) -> None:
    session.handle_event(RunBegan("Find crabs"), "r2")
    session.handle_event(make_tools_called(TASKS), "r2")
    scout, inner = make_parent("r2", "toolu_2"), make_parent("c1", "toolu_9")
    session.handle_event(TextPiece("Looking", thinking=True), "c1", **scout)
    session.handle_event(
        make_tools_called(make_delegate_call("toolu_9", {"message": "lift the stone"})),
        "c1",
        **scout,
    )
    session.handle_event(TextPiece("Nothing."), "c2", **inner)
    session.handle_event(
        make_tools_called(make_call("x", "fetch", url="https://sea.example")), "c2", **inner
    )
    session.handle_event(KILLED, "r2")


def add_guest(session: AdapterSession) -> None:
    session.handle_event(RunBegan("And you, twin?"), "r3", guest="twin")
    session.handle_event(TextPiece("I saw one."), "r3", guest="twin")
    session.handle_event(DONE, "r3", guest="twin")


def add_background(session: AdapterSession) -> None:
    session.handle_event(RunBegan(""), "r4")
    session.handle_event(make_tools_called(LATER), "r4")
    session.handle_event(make_tool_returned("toolu_3", "[]"), "r4")
    session.handle_event(DONE, "r4")
    session.handle_event(TextPiece("It is high."), "c3", **make_parent("r4", "toolu_3"))
    session.handle_event(DONE, "c3", **make_parent("r4", "toolu_3"))
    session.handle_event(ConversationCompacted("A day at the beach."), "")


def add_failures(session: AdapterSession) -> None:
    session.handle_event(RunBegan("hello?"), "r5")
    session.handle_event(RunEnded(EndReason.ERROR, "the model is gone"), "r5")
    session.handle_event(RunBegan("hello??"), "r6")
    session.handle_event(make_tools_called(make_call("k")), "r6")
    session.check_envelopes(session.adapter.close_lost_turn(session.now))


def add_hostile_input(session: AdapterSession) -> None:
    session.handle_event(RunBegan("x" * 2000), "r7")
    names = ["", "``` \n", "Ünï", "a" * 500, "__", "ask_user"]
    session.handle_event(
        make_tools_called(*(make_call(f"h{n}", name, a="\ud800") for n, name in enumerate(names))),
        "r7",
    )
    session.handle_event(
        make_tools_called(
            make_call("h9", command="\n`" * 500), make_call("k" * 999, x=[None] * 99)
        ),
        "r7",
    )
    session.handle_event(TextPiece("```\n" + "y" * 999), "r7")
    session.handle_event(RunEnded(EndReason.MAX_ITERATIONS), "r7")


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in build_example()))
