"""Many clients at once: control is answered, order is kept, a stalled client delays no other."""

import asyncio
import random
import re
import socket
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest

from crabtalk.client import Client, ServerError
from crabtalk.protocol import encode_frame, wire
from crabtalk.runtime import ToolDispatch
from crabtalk.transport import RunFiles, TransportLimits
from tests.daemon.in_process_daemon import (
    PATIENCE,
    collect_events,
    collect_text,
    get_stream_end,
    list_request_messages,
    read_conversation,
    run_daemon,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)


@pytest.mark.req("control.never_waits")
async def test_control_is_answered_while_fifty_turns_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        turns = [client.stream("crab", "!wait\n!say done", sender=f"s{n}") for n in range(50)]
        for turn in turns:
            await wait_for_event(turn, wire.StreamStart)
        await daemon.model.until_waiting(50)
        async with asyncio.timeout(PATIENCE):
            await client.ping()
            stats = await client.get_stats()
            assert (stats.runs, stats.active_conversations) == (50, 50)
            assert len((await client.list_active_conversations()).conversations) == 50
            assert len((await client.list_conversations()).conversations) == 50
            await client.steer_session("crab", "!say steered", sender="s1")
            assert await client.kill("crab", sender="s0")
        assert daemon.model.statistics()["asked"] == 50
        daemon.model.release()
        endings = await asyncio.gather(*(collect_events(turn) for turn in turns))
        assert get_stream_end(endings[0]).stop_reason == wire.STOP_REASON_CANCELLED
        assert collect_text(endings[1]) == "donesteered"
        assert [collect_text(events) for events in endings[2:]] == ["done"] * 48


@pytest.mark.req("control.never_waits")
async def test_control_is_answered_while_turns_are_in_full_flow(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        turns = [
            asyncio.ensure_future(
                collect_events(client.stream("crab", "!chunks 2000 0", sender=f"s{n}"))
            )
            for n in range(10)
        ]
        await daemon.model.until_asked(10)
        pings = 0
        while not all(turn.done() for turn in turns):
            await wait_with_timeout(client.ping())
            pings += 1
        assert pings > 10
        for events in await asyncio.gather(*turns):
            pieces = [event.content for event in events if isinstance(event, wire.StreamChunk)]
            # Chunks that wait to be sent are merged.
            assert len(re.findall(r"\d{15,}", "".join(pieces))) == 2000


@pytest.mark.req("bounds.stalled_reader")
async def test_a_client_that_never_reads_delays_no_other_and_loses_its_turn(tmp_path: Path) -> None:
    limits = TransportLimits(stall_timeout=1, drain_timeout=1)
    async with run_daemon(tmp_path, transport_limits=limits) as daemon, daemon.client() as client:
        with socket.socket(socket.AF_UNIX) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(str(RunFiles.for_home(daemon.home).socket_path))
            request = wire.StreamMsg(agent="crab", content="!chunks 1000000 0", sender="deaf")
            stalled.sendall(encode_frame(wire.ClientMessage(stream=request)))
            await daemon.model.until_asked()
            async with asyncio.timeout(PATIENCE):
                while daemon.model.hangups == 0:
                    answer = await client.send("crab", "hello", sender="bo")
                    assert answer.content == "heard: hello"
            await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        assert len(await read_conversation(client, "crab", "deaf")) == 1
        assert daemon.model.requests[-1]["messages"][-1]["content"] == "hello"


@pytest.mark.req("bounds.stalled_reader")
async def test_the_turn_of_a_client_that_never_reads_can_be_killed(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        with socket.socket(socket.AF_UNIX) as stalled:
            stalled.connect(str(RunFiles.for_home(daemon.home).socket_path))
            request = wire.StreamMsg(agent="crab", content="!chunks 1000000 0")
            stalled.sendall(encode_frame(wire.ClientMessage(stream=request)))
            await daemon.model.until_asked()
            await wait_until(lambda: any(c.is_write_paused for c in daemon.model.connections))
            assert await client.kill("crab")
            await daemon.model.until_hung_up()
            assert (await client.send("crab", "hello")).content == "heard: hello"


@pytest.mark.req("conv.one_per_pair")
@pytest.mark.one_loop
async def test_two_hundred_clients_that_create_a_pair_at_once_make_one_conversation(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        peers = [await daemon.connect_raw() for _ in range(200)]
        for number, peer in enumerate(peers):
            request = wire.SendMsg(agent="crab", content=f"turn {number}", sender="bo")
            peer.send(wire.ClientMessage(send=request))
        async with asyncio.timeout(PATIENCE):
            for number, peer in enumerate(peers):
                assert (await peer.expect()).response.content == f"heard: turn {number}"
                await peer.close()
        log = daemon.read_log()  # there is only one
        assert [line["kind"] for line in log].index("meta") == 0
        metas = [line for line in log if line["kind"] == "meta"]
        assert sum(meta["message_count"] == 0 for meta in metas) == 1
        assert len({meta["created_at"] for meta in metas}) == 1
        assert [line["id"] for line in log if line["kind"] == "message"] == list(range(400))
        (conversation,) = (await client.list_conversations()).conversations
        assert conversation.message_count == 400


class RandomClient:
    """Does random things in the conversations of a few senders, like others at the same time."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self.error_codes: Counter[int] = Counter()

    async def run(self, visits: int) -> None:
        for _ in range(visits):
            action = self._random.choice([self._talk, self._talk, self._leave, self._interfere])
            try:
                await action(f"s{self._random.randrange(3)}")
            except ServerError as error:
                self.error_codes[error.code] += 1

    async def _talk(self, sender: str) -> None:
        content = self._random.choice(["hello", "!tool look {}\n!then\n!say done"])
        guest = self._random.choice(["", "", "twin"])
        await collect_events(self._client.stream("crab", content, sender=sender, guest=guest))

    async def _leave(self, sender: str) -> None:
        async with aclosing(self._client.stream("crab", "!chunks 50 1000", sender=sender)) as turn:
            for _ in range(self._random.randrange(1, 6)):
                await anext(turn, None)

    async def _interfere(self, sender: str) -> None:
        client = self._client
        match self._random.randrange(6):
            case 0:
                await client.kill("crab", sender=sender)
            case 1:
                await client.steer_session("crab", "!say so", sender=sender)
            case 2:
                await client.compact("crab", sender=sender)
            case 3:
                await client.reload()
            case 4:
                await client.list_messages("crab", sender=sender)
            case 5:
                for conversation in (await client.list_conversations("crab", sender)).conversations:
                    await client.delete_conversation(conversation.file_path)


@pytest.mark.req("conv.consistent")
@pytest.mark.one_loop
async def test_files_lists_and_live_state_agree_after_concurrent_random_requests(
    tmp_path: Path,
) -> None:
    async def look(call: ToolDispatch) -> str:
        await asyncio.sleep(0)
        return "waves"

    tools = {"look": look}
    async with (
        run_daemon(tmp_path, summary="In short.", tools=tools) as daemon,
        daemon.client() as client,
    ):
        visitors = [RandomClient(client, seed) for seed in range(8)]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(visitor.run(15) for visitor in visitors))
        codes = sum((visitor.error_codes for visitor in visitors), Counter[int]())
        # 500: a compaction that was killed. 503: a turn that was killed before it was accepted.
        assert codes.keys() <= {400, 404, 500, 503}
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        listed = {c.file_path: c for c in (await client.list_conversations()).conversations}
        assert listed.keys() == {log.stem for log in daemon.log_paths}
        active = {c.sender: c for c in (await client.list_active_conversations()).conversations}
        for conversation in listed.values():
            sender, count = conversation.sender, conversation.message_count
            page = await client.list_messages("crab", sender=sender, limit=500)
            assert [message.id for message in page.messages] == list(range(count))
            assert active[sender].message_count == page.total == count
            assert (await client.send("crab", "hello", sender=sender)).content == "heard: hello"


@pytest.mark.one_loop
@pytest.mark.req("conv.turns.in_order")
async def test_six_hundred_interleaved_turns_over_twenty_conversations_keep_their_order(
    tmp_path: Path,
) -> None:
    """Ten turns of each conversation wait at a time; they run one by one, in order of arrival."""

    async def talk(client: Client, sender: str) -> None:
        for start in range(0, 30, 10):
            turns = []
            for number in range(start, start + 10):
                turn = client.stream("crab", f"{sender} {number}", sender=sender)
                await wait_for_event(turn, wire.StreamStart)
                turns.append(turn)
            answers = [
                collect_text(events) for events in await asyncio.gather(*map(collect_events, turns))
            ]
            assert answers == [f"heard: {sender} {n}" for n in range(start, start + 10)]

    senders = [f"s{n}" for n in range(20)]
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        async with asyncio.timeout(50):
            await asyncio.gather(*(talk(client, sender) for sender in senders))
        for sender in senders:
            assert [text for _, text in await read_conversation(client, "crab", sender)] == [
                text
                for number in range(30)
                for text in (f"{sender} {number}", f"heard: {sender} {number}")
            ]
        histories = [list_request_messages(request)[1:] for request in daemon.model.requests]
        assert len(histories) == 600
        for history in histories:
            sender, number = history[-1][1].split()
            assert len(history) == 2 * int(number) + 1
            assert all(text.split()[-2] == sender for _, text in history)
