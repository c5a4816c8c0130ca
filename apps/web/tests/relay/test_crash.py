"""kill -9 at any moment: acknowledged messages are stored once, in an order without gaps."""

import asyncio
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from apps.web.tests.relay.relay_process import RelayProcess, run_relay_process
from apps.web.tests.relay.relay_world import RelayReply, RelayUser
from crabtalk_web.sealing import MasterSecret, new_key

SPEAKERS = 4
GONE_ERRORS = (aiohttp.ClientError, ConnectionError, TimeoutError)


class CrashWriter:
    """Writers that send until the relay dies, and count only acknowledged messages."""

    def __init__(
        self, secret: MasterSecret, token: str, session: str, chance: random.Random
    ) -> None:
        self.secret, self.token, self.session = secret, token, session
        self.chance = chance
        self.acknowledged: dict[str, int] = {}
        self.files: dict[str, bytes] = {}
        self.metadata_version = 0
        self._unsure: list[list[dict[str, str]]] = [[] for _ in range(SPEAKERS)]
        self._count = 0

    async def until_killed(self, relay: RelayProcess, seconds: float) -> None:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession(relay.url))
            ada = RelayUser(http, self.secret)
            ada.token = self.token
            speaking = [asyncio.ensure_future(self._send_messages(ada, n)) for n in range(SPEAKERS)]
            speaking.append(asyncio.ensure_future(self._send_files(ada)))
            await asyncio.sleep(seconds)
            await relay.kill()
            await asyncio.gather(*speaking)

    async def _send_messages(self, ada: RelayUser, speaker: int) -> None:
        """As a gateway does: unacknowledged messages are sent again with the same local id."""
        while True:
            if not self._unsure[speaker]:
                for _ in range(self.chance.choice((1, 1, 5, 100))):
                    self._count += 1
                    local_id = f"{speaker}-{self._count}"
                    self._unsure[speaker].append(ada.build_message(local_id, local_id))
            said = self._unsure[speaker]
            try:
                reply = await ada.post(f"/v3/sessions/{self.session}/messages", messages=said)
            except GONE_ERRORS:
                return
            for each in reply.ok["messages"]:
                known = self.acknowledged.setdefault(each["localId"], each["seq"])
                assert known == each["seq"]
            self._unsure[speaker] = []

    async def _send_files(self, ada: RelayUser) -> None:
        base = f"/v1/sessions/{self.session}/attachments"
        while True:
            data = os.urandom(self.chance.choice((10, 100_000)))
            try:
                offered: RelayReply = await ada.post(f"{base}/request-upload", size=len(data))
                if offered.status == 429:
                    return
                sent = await ada.request("PUT", offered.ok["uploadUrl"], data=data)
            except GONE_ERRORS:
                return
            assert sent.status == 200
            self.files[offered.ok["ref"]] = data

    async def check(self, relay: RelayProcess) -> None:
        async with aiohttp.ClientSession(relay.url) as http:
            ada = RelayUser(http, self.secret)
            ada.token = self.token
            read = await ada.read_messages(self.session)
            assert [each["seq"] for each in read] == list(range(1, len(read) + 1))
            stored = {each["localId"]: each["seq"] for each in read}
            assert len(stored) == len(read)
            assert stored.items() >= self.acknowledged.items()
            for ref, data in self.files.items():
                path = f"/v1/sessions/{self.session}/attachments/{ref.rpartition('/')[2]}"
                assert (await ada.get(path)).ok == data


async def run_rounds(tmp_path: Path, count: int) -> CrashWriter:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    data = tmp_path / "data"
    secret = MasterSecret(new_key())
    async with run_relay_process(data) as relay, aiohttp.ClientSession(relay.url) as http:
        ada = await RelayUser(http, secret).log_in()
        chatter = CrashWriter(secret, ada.token, await ada.create_session(), chance)
    for _ in range(count):
        async with run_relay_process(data) as relay:
            await chatter.check(relay)
            await chatter.until_killed(relay, chance.uniform(0.02, 0.5))
    async with run_relay_process(data) as relay:
        await chatter.check(relay)
    return chatter


@pytest.mark.one_loop
@pytest.mark.req("relay.crash")
async def test_nothing_acknowledged_is_lost_when_it_is_killed(tmp_path: Path) -> None:
    chatter = await run_rounds(tmp_path, 5)
    assert chatter.acknowledged


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.timeout(600)
@pytest.mark.req("relay.crash")
async def test_nothing_acknowledged_is_lost_in_a_hundred_kills(tmp_path: Path) -> None:
    chatter = await run_rounds(tmp_path, 100)
    assert len(chatter.acknowledged) > 1000


@pytest.mark.one_loop
@pytest.mark.req("relay.stop")
async def test_on_sigterm_it_finishes_and_exits_with_zero(tmp_path: Path) -> None:
    async with run_relay_process(tmp_path / "data") as relay, AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(relay.url))
        ada = await RelayUser(http, MasterSecret(new_key())).log_in()
        await stack.enter_async_context(ada.stack)
        await ada.connect()
        relay.process.terminate()
        async with asyncio.timeout(20):
            assert await relay.process.wait() == 0
