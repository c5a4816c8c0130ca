"""Two devices that connect and disconnect while others write: both see everything once, in the same
order."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.relay.relay_world import PATIENCE, RelayUser, SocketListener, open_relay_world

TOTAL = 400


class PagingDevice:
    """A device as the protocol wants it: shows a live message if it is the next one, else fetches
    pages."""

    def __init__(self, person: RelayUser, session: str, chance: random.Random) -> None:
        self.shown: list[dict[str, Any]] = []
        self._person, self._session, self._chance = person, session, chance

    async def watch(self) -> None:
        while len(self.shown) < TOTAL:
            socket = await self._person.connect()
            await self._catch_up()
            patience = self._chance.randint(1, 60)
            await self._follow(socket, patience)
            await socket.leave()

    async def _follow(self, socket: SocketListener, patience: int) -> None:
        """Until so many messages have come, or all there are."""
        at = 0
        while at < patience and len(self.shown) < TOTAL:
            message = (await socket.wait_for_nth(at))["body"]["message"]
            at += 1
            following = self.shown[-1]["seq"] + 1 if self.shown else 1
            if message["seq"] == following:
                self.shown.append(message)
            elif message["seq"] > following:
                await self._catch_up()

    async def _catch_up(self) -> None:
        after = self.shown[-1]["seq"] if self.shown else 0
        self.shown += await self._person.read_messages(self._session, after)


@pytest.mark.one_loop
@pytest.mark.req("relay.devices.order")
async def test_devices_that_come_and_go_see_the_same(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        screens = [
            PagingDevice(await world.create_user(ada.secret), session, chance) for _ in range(2)
        ]

        async def speak(name: str) -> None:
            said = 0
            while said < TOTAL // 4:
                count = min(chance.choice((1, 1, 2, 10)), TOTAL // 4 - said)
                await ada.send_messages(session, *(f"{name}-{said + n}" for n in range(count)))
                said += count

        async with asyncio.timeout(2 * PATIENCE):
            watching = [asyncio.ensure_future(each.watch()) for each in screens]
            await asyncio.gather(*(speak(name) for name in "abcd"))
            await asyncio.gather(*watching)
        late = await (await world.create_user(ada.secret)).read_messages(session)
        assert [each["seq"] for each in late] == list(range(1, TOTAL + 1))
        assert screens[0].shown == screens[1].shown == late
