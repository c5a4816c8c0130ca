"""A conversation with all there is in it, as the adapter tells it; `fixtures/emitted.jsonl` has it.

python -m apps.web.tests.adapter.example > apps/web/tests/stream/fixtures/emitted.jsonl
"""

import sys

from apps.web.tests.adapter.session import (
    DONE,
    KILLED,
    Session,
    call,
    called,
    child_of,
    delegated,
    returned,
)
from crabtalk_web.adapter.happenings import (
    Asked,
    Began,
    Compacted,
    Ended,
    Option,
    Piece,
    Question,
    Reason,
    SegmentOver,
    Steered,
    StepOver,
    Used,
)
from crabtalk_web.stream import File, Image, encode

TASKS = delegated(
    "toolu_2", {"agent": "scout", "message": "Look around\nand report"}, {"message": "dig"}
)
LATER = delegated("toolu_3", {"message": "watch the tide"}, background=True)
PICTURE = File(
    ref="sessions/s/attachments/1.enc",
    name="beach 🦀.png",
    size=1234,
    mime_type="image/png",
    image=Image(64, 48, "3OcRJYB4d3h/iIeHeEh3eIhw+j3A"),
)


def example() -> list[str]:
    """Envelopes as they are sent, one a line."""
    session = Session()
    for act in (tools, tasks, guest, background, failures, hostility):
        act(session)
    return [encode(envelope).decode() for envelope in session.envelopes]


def tools(session: Session) -> None:
    session.hear(Began("What is on the beach?"), "r1")
    session.hear(Piece("They want to know\n\n", thinking=True), "r1")
    session.hear(SegmentOver(), "r1")
    session.hear(Piece("Let me *look*. 🦀"), "r1")
    session.hear(called(call("toolu_0", command="ls"), call("toolu_1", "github__list", n=1)), "r1")
    session.hear(returned("toolu_1", "no such beach", is_error=True, duration_ms=12), "r1")
    session.hear(returned("toolu_0", "sand\n" * 4000), "r1")
    session.hear(StepOver(), "r1")
    session.hear(Used(812, 46, 500), "r1")
    session.take(session.adapter.attach(PICTURE, session.now, run="r1"))
    session.hear(Steered("And the sea?"), "r1")
    options = (Option("Yes", "today"), Option("No"))
    session.hear(called(call("toolu_a", "ask_user", questions=[{"header": "Swim"}])), "r1")
    session.hear(Asked("r1-1", (Question("Shall we swim?", "Swim", options),)), "r1")
    session.hear(returned("toolu_a", "Yes"), "r1")
    session.hear(called(call("toolu_b", "edit", path="a", old_string="x", new_string="y")), "r1")
    session.hear(Asked("r1-2", (Question("May crab call edit?", "edit", options),)), "r1")
    session.take(session.adapter.answer("r1-2", session.now))
    session.hear(returned("toolu_b"), "r1")
    session.hear(Piece("A paragraph.\n\n" * 350), "r1")
    session.hear(DONE, "r1")


def tasks(session: Session) -> None:
    session.hear(Began("Find crabs"), "r2")
    session.hear(called(TASKS), "r2")
    scout, inner = child_of("r2", "toolu_2"), child_of("c1", "toolu_9")
    session.hear(Piece("Looking", thinking=True), "c1", **scout)
    session.hear(called(delegated("toolu_9", {"message": "lift the stone"})), "c1", **scout)
    session.hear(Piece("Nothing."), "c2", **inner)
    session.hear(called(call("x", "fetch", url="https://sea.example")), "c2", **inner)
    session.hear(KILLED, "r2")


def guest(session: Session) -> None:
    session.hear(Began("And you, twin?"), "r3", guest="twin")
    session.hear(Piece("I saw one."), "r3", guest="twin")
    session.hear(DONE, "r3", guest="twin")


def background(session: Session) -> None:
    session.hear(Began(""), "r4")
    session.hear(called(LATER), "r4")
    session.hear(returned("toolu_3", "[]"), "r4")
    session.hear(DONE, "r4")
    session.hear(Piece("It is high."), "c3", **child_of("r4", "toolu_3"))
    session.hear(DONE, "c3", **child_of("r4", "toolu_3"))
    session.hear(Compacted("A day at the beach."), "")


def failures(session: Session) -> None:
    session.hear(Began("hello?"), "r5")
    session.hear(Ended(Reason.ERROR, "the model is gone"), "r5")
    session.hear(Began("hello??"), "r6")
    session.hear(called(call("k")), "r6")
    session.take(session.adapter.lose(session.now))


def hostility(session: Session) -> None:
    session.hear(Began("x" * 2000), "r7")
    names = ["", "``` \n", "Ünï", "a" * 500, "__", "ask_user"]
    session.hear(called(*(call(f"h{n}", name, a="\ud800") for n, name in enumerate(names))), "r7")
    session.hear(called(call("h9", command="\n`" * 500), call("k" * 999, x=[None] * 99)), "r7")
    session.hear(Piece("```\n" + "y" * 999), "r7")
    session.hear(Ended(Reason.MAX_ITERATIONS), "r7")


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in example()))
