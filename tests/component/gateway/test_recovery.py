"""Recovery: from every state that a process can die in, the next one goes on."""

from contextlib import aclosing
from pathlib import Path

import pytest

from crabtalk.client import ServerError
from crabtalk.component.gateway import Chat, Person, Update
from crabtalk.component.gateway.entries import (
    Answering,
    AnyRecord,
    Ask,
    Asking,
    Came,
    Closed,
    Done,
    Kind,
    Sending,
    Sent,
)
from crabtalk.component.gateway.errand import NOT_FOLDED
from crabtalk.component.gateway.journal import Journal
from crabtalk.component.gateway.lane import UPGRADED
from crabtalk.component.gateway.reply import SENT_AGAIN
from crabtalk.component.journal import encoded
from tests.component.gateway.loft import Message
from tests.component.gateway.world import World, world

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.once.restart")]


def came(key: str, text: str) -> Came:
    return Came(Update(key, Chat("7"), Person("7", "Ann"), text))


def asking(update: str, text: str, kind: Kind = "turn", **more: object) -> Asking:
    given = {"agent": "crab", "sender": "pg:7", "key": f"pg:7:{update}", **more}
    ask = Ask(kind=kind, text=text, **given)  # type: ignore[arg-type]
    return Asking(update, ask)


def left(w: World, *records: AnyRecord) -> None:
    """A journal as a process left it that was killed."""
    path = w.home / "pigeon" / "journal"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(map(encoded, records)))


async def said(w: World, text: str, key: str = "") -> None:
    """By that process, before it died."""
    assert w.daemon is not None
    async with w.daemon.client() as client:
        await client.send("crab", text, sender="pg:7", key=f"pg:7:{key}" if key else None)


async def steered(w: World, text: str, *steers: tuple[str, str]) -> None:
    """A turn of that process with what was said into it, all of it over by now."""
    assert w.daemon is not None
    async with w.daemon.client() as client:
        stream = client.stream("crab", f"!wait\n!say {text}", sender="pg:7", key="pg:7:u1")
        async with aclosing(stream) as events:
            await anext(events)
            await w.daemon.model.until_waiting()
            for key, words in steers:
                await client.steer_session("crab", words, sender="pg:7", key=f"pg:7:{key}")
            w.daemon.model.release()
            async for _ in events:
                pass


async def recovered(w: World) -> None:
    path = w.home / "pigeon" / "journal"
    async with w.running():
        await w.until(lambda: not Journal.peek(path).items)


async def test_what_only_came_is_answered(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        left(w, came("u1", "hello"), came("u2", "!say two"))
        await recovered(w)
        assert await w.heard() == ["hello", "!say two"]
        assert "two" in "".join(w.loft.texts())


async def test_what_was_about_to_be_said_and_was_not_is_said(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        left(w, came("u1", "hello"), asking("u1", "hello"))
        await recovered(w)
        assert await w.heard() == ["hello"]
        assert w.loft.texts() == ["heard: hello"]


async def test_what_was_about_to_be_said_to_a_guest_is_said_to_the_guest(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        left(w, came("u1", "@twin !say hi"), asking("u1", "!say hi", guest="twin"))
        await recovered(w)
        assert await w.heard() == ["!say hi"]
        assert w.loft.texts() == ["**twin:** hi"]


async def test_what_was_said_is_told_and_not_said_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await said(w, "hello")  # the same words, which mean nothing
        await said(w, "hello", "u1")
        left(w, came("u1", "hello"), asking("u1", "hello"))
        await recovered(w)
        assert await w.heard() == ["hello", "hello"]
        assert w.loft.texts() == ["heard: hello"]


@pytest.mark.req("gateways.once.ambiguous")
async def test_what_was_being_sent_is_sent_with_a_mark(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await said(w, "hello", "u1")
        left(w, came("u1", "hello"), asking("u1", "hello"), Sending("u1"))
        await recovered(w)
        assert await w.heard() == ["hello"]
        assert w.loft.texts() == [f"{SENT_AGAIN}\n\nheard: hello"]


async def test_a_message_that_was_growing_is_finished(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await said(w, "hello there", "u1")
        w.loft.messages.append(Message("b1", "7", "heard: hel"))
        left(w, came("u1", "hello there"), asking("u1", "hello there"), Sent("u1", "b1"))
        await recovered(w)
        assert w.loft.texts() == ["heard: hello there"]


async def test_what_was_finished_is_not_told_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await said(w, "!say one two three", "u1")
        text = "!say one two three"
        left(w, came("u1", text), asking("u1", text), Closed("u1", len("onetwo")))
        await recovered(w)
        assert w.loft.texts() == ["three"]


async def test_a_note_is_told_also_where_more_was_shown_than_the_log_has(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        text = "!status 400 no such model"
        await said_in_vain(w, text)
        left(w, came("u1", text), asking("u1", text), Closed("u1", 1000))
        await recovered(w)
        (shown,) = w.loft.texts()
        assert shown.startswith("⚠️")
        assert "no such model" in shown


async def said_in_vain(w: World, text: str) -> None:
    with pytest.raises(ServerError):
        await said(w, text, "u1")


async def test_a_word_into_a_turn_that_was_not_said_is_said(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await said(w, "hello", "u1")
        steer = asking("u2", "deeper", "steer")
        left(w, came("u1", "hello"), Done("u1"), came("u2", "deeper"), steer)
        await recovered(w)
        assert await w.heard() == ["hello", "deeper"]
        assert w.loft.texts() == ["heard: deeper"]


async def test_a_word_into_a_turn_that_was_said_is_not_said_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await steered(w, "hello", ("u2", "deeper"))
        steer = asking("u2", "deeper", "steer")
        left(w, came("u1", "hello"), Done("u1"), came("u2", "deeper"), steer)
        await recovered(w)
        assert await w.heard() == ["!wait\n!say hello", "deeper"]
        assert w.loft.texts() == []


async def test_the_same_word_of_another_message_is_said_as_well(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await steered(w, "hello", ("u2", "deeper"))
        steer = asking("u3", "deeper", "steer")
        left(w, came("u1", "hello"), Done("u1"), came("u3", "deeper"), steer)
        await recovered(w)
        assert await w.heard() == ["!wait\n!say hello", "deeper", "deeper"]


@pytest.mark.req("gateways.delivery.upgrade")
@pytest.mark.parametrize("kind", ["turn", "steer"])
async def test_what_an_earlier_release_was_about_to_say_is_given_back_to_its_person(
    tmp_path: Path, kind: Kind
) -> None:
    """It had no key: whether it was said cannot be known."""
    async with world(tmp_path) as w:
        left(w, came("u1", "hello"), asking("u1", "hello", kind, key=""), came("u2", "!say two"))
        await recovered(w)
        assert await w.heard() == ["!say two"]
        assert w.loft.texts() == [UPGRADED, "two"]


@pytest.mark.req("gateways.compact")
@pytest.mark.parametrize("name", ["compact", "new"])
async def test_a_compaction_that_was_not_asked_for_is_not_asked_for_again(
    tmp_path: Path, name: str
) -> None:
    async with world(tmp_path) as w:
        await said(w, "hello")
        left(w, came("u1", f"/{name}"), asking("u1", name, "compact"))
        await recovered(w)
        assert w.loft.texts() == [NOT_FOLDED.format(name=name)]


@pytest.mark.req("gateways.compact")
async def test_what_came_of_a_compaction_is_told_by_the_next(tmp_path: Path) -> None:
    async with world(tmp_path, summary="It was about sand.") as w:
        await said(w, "hello")
        assert w.daemon is not None
        async with w.daemon.client() as client:
            await client.compact("crab", sender="pg:7")
            await said(w, "again")
            await client.compact("crab", sender="pg:7", fresh=True)
        left(
            w,
            *(came("u1", "/compact"), came("u2", "/new"), Done("u1")),
            asking("u2", "new", "compact", offset=1),
            *(came("u3", "/compact"), asking("u3", "compact", "compact", offset=2)),
        )
        await recovered(w)
        assert w.loft.texts() == ["We begin anew.", NOT_FOLDED.format(name="compact")]


async def test_an_answer_of_our_own_is_told(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        left(w, came("u1", "/agents"), Answering("u1", "Agents: none"))
        await recovered(w)
        assert w.loft.texts() == ["Agents: none"]


async def test_an_answer_to_a_question_that_is_over_does_no_harm(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await said(w, "hello")
        left(w, came("u2", "yes"), asking("u2", "{}", "answer", ask="gone-1"))
        await recovered(w)
        assert await w.heard() == ["hello"]
        assert w.loft.texts() == []
