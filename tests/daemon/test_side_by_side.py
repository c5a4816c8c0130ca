"""A turn and its control requests on one connection to a real daemon."""

import asyncio
import json
from pathlib import Path

import pytest

from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import PATIENCE, run_daemon
from tests.scripted_server import RawPeer, make_ping

QUESTION = {
    "questions": [
        {
            "question": "Which beach?",
            "header": "Beach",
            "options": [{"label": "North"}, {"label": "South"}],
        }
    ]
}


def make_turn_request(content: str, request_id: int, *, sender: str = "user") -> wire.ClientMessage:
    message = wire.StreamMsg(agent="crab", content=content, sender=sender)
    return wire.ClientMessage(stream=message, request_id=request_id)


async def read_until(peer: RawPeer, event: str, request_id: int) -> wire.ServerMessage:
    async with asyncio.timeout(PATIENCE):
        while True:
            message = await peer.expect()
            if message.request_id == request_id and message.stream.WhichOneof("event") == event:
                return message


@pytest.mark.req("wire.side_by_side.control")
async def test_a_turn_is_steered_and_killed_on_its_own_connection(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        peer = await daemon.connect_raw()
        peer.send(make_turn_request("!wait\n!say on", 1))
        await read_until(peer, "start", 1)
        await daemon.model.until_waiting()
        peer.send(make_ping())
        assert (await peer.expect()).HasField("pong")
        steer = wire.SteerSessionMsg(agent="crab", sender="user", content="!wait\n!say steered")
        peer.send(wire.ClientMessage(steer_session=steer, request_id=2))
        assert (await peer.expect()) == wire.ServerMessage(pong=wire.Pong(), request_id=2)
        daemon.model.release()
        await read_until(peer, "user_steered", 1)
        await daemon.model.until_waiting()
        kill = wire.KillMsg(agent="crab", sender="user")
        peer.send(wire.ClientMessage(kill=kill, request_id=3))
        messages: list[tuple[int, str | None]] = []
        async with asyncio.timeout(PATIENCE):
            while not {(3, "pong"), (1, "end")} <= set(messages):
                message = await peer.expect()
                kind = message.stream.WhichOneof("event") or message.WhichOneof("msg")
                messages.append((message.request_id, kind))
        await peer.close()


@pytest.mark.req("wire.side_by_side.control")
async def test_a_question_is_answered_on_the_connection_of_its_turn(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        peer = await daemon.connect_raw()
        peer.send(
            make_turn_request(f"!tool ask_user {json.dumps(QUESTION)}\n!then\n!say thanks", 1)
        )
        await read_until(peer, "ask_user", 1)
        reply = wire.ReplyToAsk(agent="crab", sender="user", content="South")
        peer.send(wire.ClientMessage(reply_to_ask=reply, request_id=2))
        assert (await peer.expect()).request_id == 2
        end = await read_until(peer, "end", 1)
        assert end.stream.end.stop_reason == wire.STOP_REASON_COMPLETED
        await peer.close()


@pytest.mark.req("wire.side_by_side.streams")
async def test_two_turns_of_a_conversation_run_in_order_and_others_concurrently(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon:
        peer = await daemon.connect_raw()
        first = make_turn_request("!wait\n!say first", 1)
        first.stream.cwd = str(tmp_path)  # checked in a thread, which takes a moment
        peer.send(
            first,
            make_turn_request("!say second", 2),
            make_turn_request("!say other", 3, sender="bo"),
        )
        ended: list[int] = []
        started: list[int] = []
        async with asyncio.timeout(PATIENCE):
            while len(ended) < 3:
                message = await peer.expect()
                if message.stream.HasField("start"):
                    started.append(message.request_id)
                if message.stream.HasField("end"):
                    ended.append(message.request_id)
                    if ended == [3]:
                        await daemon.model.until_waiting()
                        daemon.model.release()
        assert ended == [3, 1, 2]
        assert started.index(1) < started.index(2)
        async with daemon.client() as client:
            page = await client.list_messages("crab")
        answers = [message.content for message in page.messages if message.role == "assistant"]
        assert answers == ["first", "second"]
        await peer.close()
