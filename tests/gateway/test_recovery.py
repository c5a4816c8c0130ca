"""Recovery: a gateway goes on from every state in which the last process can have died."""

from contextlib import aclosing
from pathlib import Path

import pytest

from crabtalk.client import ServerError
from crabtalk.gateway import Chat, Person, Update
from crabtalk.gateway.chat_queue import UPGRADED_MEANWHILE
from crabtalk.gateway.journal import GatewayJournal
from crabtalk.gateway.journal_records import (
    AnswerPrepared,
    AnyGatewayRecord,
    DaemonRequest,
    RequestKind,
    RequestStarted,
    SendCompleted,
    SendStarted,
    TextDelivered,
    UpdateHandled,
    UpdateReceived,
)
from crabtalk.gateway.slow_command import COMPACTION_INTERRUPTED
from crabtalk.gateway.streamed_reply import SENT_AGAIN_MARK
from crabtalk.service.journal import encode_record
from tests.gateway.gateway_world import GatewayWorld, open_gateway_world
from tests.gateway.pigeon_server import PigeonMessage

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.once.restart")]


def make_received(key: str, text: str) -> UpdateReceived:
    return UpdateReceived(Update(key, Chat("7"), Person("7", "Ann"), text))


def make_request(
    update: str, text: str, kind: RequestKind = "turn", **more: object
) -> RequestStarted:
    fields = {"agent": "crab", "sender": "pg:7", "key": f"pg:7:{update}", **more}
    ask = DaemonRequest(kind=kind, text=text, **fields)  # type: ignore[arg-type]
    return RequestStarted(update, ask)


def write_journal(w: GatewayWorld, *records: AnyGatewayRecord) -> None:
    """Write a journal as a killed process left it."""
    path = w.home / "pigeon" / "journal"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(map(encode_record, records)))


async def send_message(w: GatewayWorld, text: str, key: str = "") -> None:
    """Send a message as that process would have before it died."""
    assert w.daemon is not None
    async with w.daemon.client() as client:
        await client.send("crab", text, sender="pg:7", key=f"pg:7:{key}" if key else None)


async def send_and_steer(w: GatewayWorld, text: str, *steers: tuple[str, str]) -> None:
    """Run a turn of that process with steering messages, until it has ended."""
    assert w.daemon is not None
    async with w.daemon.client() as client:
        stream = client.stream("crab", f"!wait\n!say {text}", sender="pg:7", key="pg:7:u1")
        async with aclosing(stream) as events:
            await anext(events)
            await w.daemon.model.until_waiting()
            for key, steer_text in steers:
                await client.steer_session("crab", steer_text, sender="pg:7", key=f"pg:7:{key}")
            w.daemon.model.release()
            async for _ in events:
                pass


async def wait_until_recovered(w: GatewayWorld) -> None:
    path = w.home / "pigeon" / "journal"
    async with w.run_gateway():
        await w.wait_until(lambda: not GatewayJournal.read_state(path).pending)


async def test_an_update_that_was_only_received_is_answered(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        write_journal(w, make_received("u1", "hello"), make_received("u2", "!say two"))
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["hello", "!say two"]
        assert "two" in "".join(w.server.texts_in())


async def test_a_recorded_request_that_was_not_sent_is_sent(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        write_journal(w, make_received("u1", "hello"), make_request("u1", "hello"))
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["hello"]
        assert w.server.texts_in() == ["heard: hello"]


async def test_a_recorded_request_to_a_guest_is_sent_to_the_guest(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        write_journal(
            w, make_received("u1", "@twin !say hi"), make_request("u1", "!say hi", guest="twin")
        )
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["!say hi"]
        assert w.server.texts_in() == ["**twin:** hi"]


async def test_the_answer_to_a_sent_request_is_delivered_and_the_request_not_repeated(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_message(w, "hello")  # the same text in another message
        await send_message(w, "hello", "u1")
        write_journal(w, make_received("u1", "hello"), make_request("u1", "hello"))
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["hello", "hello"]
        assert w.server.texts_in() == ["heard: hello"]


@pytest.mark.req("gateways.once.ambiguous")
async def test_a_message_that_was_being_sent_is_sent_again_with_a_mark(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_message(w, "hello", "u1")
        write_journal(
            w, make_received("u1", "hello"), make_request("u1", "hello"), SendStarted("u1")
        )
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["hello"]
        assert w.server.texts_in() == [f"{SENT_AGAIN_MARK}\n\nheard: hello"]


async def test_a_message_that_was_growing_is_finished(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_message(w, "hello there", "u1")
        w.server.messages.append(PigeonMessage("b1", "7", "heard: hel"))
        write_journal(
            w,
            make_received("u1", "hello there"),
            make_request("u1", "hello there"),
            SendCompleted("u1", "b1"),
        )
        await wait_until_recovered(w)
        assert w.server.texts_in() == ["heard: hello there"]


async def test_finished_messages_are_not_sent_again(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_message(w, "!say one two three", "u1")
        text = "!say one two three"
        write_journal(
            w,
            make_received("u1", text),
            make_request("u1", text),
            TextDelivered("u1", len("onetwo")),
        )
        await wait_until_recovered(w)
        assert w.server.texts_in() == ["three"]


async def test_the_final_note_is_sent_even_if_the_chat_was_shown_more_than_the_log_has(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path) as w:
        text = "!status 400 no such model"
        await send_failing_message(w, text)
        write_journal(
            w, make_received("u1", text), make_request("u1", text), TextDelivered("u1", 1000)
        )
        await wait_until_recovered(w)
        (note,) = w.server.texts_in()
        assert note.startswith("⚠️")
        assert "no such model" in note


async def send_failing_message(w: GatewayWorld, text: str) -> None:
    with pytest.raises(ServerError):
        await send_message(w, text, "u1")


async def test_a_steering_message_that_was_not_sent_is_sent(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_message(w, "hello", "u1")
        steer = make_request("u2", "deeper", "steer")
        write_journal(
            w,
            make_received("u1", "hello"),
            UpdateHandled("u1"),
            make_received("u2", "deeper"),
            steer,
        )
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["hello", "deeper"]
        assert w.server.texts_in() == ["heard: deeper"]


async def test_a_steering_message_that_was_sent_is_not_repeated(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_and_steer(w, "hello", ("u2", "deeper"))
        steer = make_request("u2", "deeper", "steer")
        write_journal(
            w,
            make_received("u1", "hello"),
            UpdateHandled("u1"),
            make_received("u2", "deeper"),
            steer,
        )
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["!wait\n!say hello", "deeper"]
        assert w.server.texts_in() == []


async def test_the_same_text_in_another_steering_message_is_sent_as_well(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_and_steer(w, "hello", ("u2", "deeper"))
        steer = make_request("u3", "deeper", "steer")
        write_journal(
            w,
            make_received("u1", "hello"),
            UpdateHandled("u1"),
            make_received("u3", "deeper"),
            steer,
        )
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["!wait\n!say hello", "deeper", "deeper"]


@pytest.mark.req("gateways.delivery.upgrade")
@pytest.mark.parametrize("kind", ["turn", "steer"])
async def test_a_person_is_told_to_repeat_a_request_that_an_earlier_release_recorded(
    tmp_path: Path, kind: RequestKind
) -> None:
    """It had no key, so whether the daemon got it cannot be known."""
    async with open_gateway_world(tmp_path) as w:
        write_journal(
            w,
            make_received("u1", "hello"),
            make_request("u1", "hello", kind, key=""),
            make_received("u2", "!say two"),
        )
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["!say two"]
        assert w.server.texts_in() == [UPGRADED_MEANWHILE, "two"]


@pytest.mark.req("gateways.compact")
@pytest.mark.parametrize("name", ["compact", "new"])
async def test_a_compaction_that_did_not_run_is_not_started_after_a_restart(
    tmp_path: Path, name: str
) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_message(w, "hello")
        write_journal(w, make_received("u1", f"/{name}"), make_request("u1", name, "compact"))
        await wait_until_recovered(w)
        assert w.server.texts_in() == [COMPACTION_INTERRUPTED.format(name=name)]


@pytest.mark.req("gateways.compact")
async def test_the_next_process_reports_the_result_of_a_compaction(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, summary="It was about sand.") as w:
        await send_message(w, "hello")
        assert w.daemon is not None
        async with w.daemon.client() as client:
            await client.compact("crab", sender="pg:7")
            await send_message(w, "again")
            await client.compact("crab", sender="pg:7", fresh=True)
        write_journal(
            w,
            *(make_received("u1", "/compact"), make_received("u2", "/new"), UpdateHandled("u1")),
            make_request("u2", "new", "compact", offset=1),
            *(make_received("u3", "/compact"), make_request("u3", "compact", "compact", offset=2)),
        )
        await wait_until_recovered(w)
        assert w.server.texts_in() == [
            "We begin anew.",
            COMPACTION_INTERRUPTED.format(name="compact"),
        ]


async def test_an_answer_of_the_gateways_own_is_delivered(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        write_journal(w, make_received("u1", "/agents"), AnswerPrepared("u1", "Agents: none"))
        await wait_until_recovered(w)
        assert w.server.texts_in() == ["Agents: none"]


async def test_an_answer_to_a_question_that_is_over_does_no_harm(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        await send_message(w, "hello")
        write_journal(
            w, make_received("u2", "yes"), make_request("u2", "{}", "answer", ask="gone-1")
        )
        await wait_until_recovered(w)
        assert await w.list_user_messages() == ["hello"]
        assert w.server.texts_in() == []
