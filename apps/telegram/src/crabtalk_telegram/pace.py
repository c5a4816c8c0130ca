"""Pace: not faster than Telegram takes messages, so that it does not have to say so.

It counts about thirty messages a second for all chats, and twenty a minute for a group. Who is told
too often that it was too fast is not heard at all for a while.
"""

import asyncio
from collections import OrderedDict

from crabtalk.component.gateway import TryLater

A_SECOND = 25.0
# So many at once, after a quiet second.
AT_ONCE = 20
GROUP_EVERY = 3.0
# A change that would have to wait longer is better made later, with more in it.
PATIENCE = 1.0
MOST_GROUPS = 1024


class Pace:
    def __init__(self, a_second: float = A_SECOND, group_every: float = GROUP_EVERY) -> None:
        self._each = 1 / a_second
        self._group_every = group_every
        self._free = 0.0  # when the next one may go, by the loop's clock
        self._groups: OrderedDict[str, float] = OrderedDict()

    async def send(self) -> None:
        """When a message may go. Cancelled, its turn is lost to nobody."""
        await asyncio.sleep(self._take())

    async def change(self, chat: str, *, is_group: bool) -> None:
        """When a message may be changed. Raises TryLater where that is not soon."""
        now = asyncio.get_running_loop().time()
        if is_group and (wait := self._groups.get(chat, 0.0) - now) > 0:
            raise TryLater(wait, "a group takes few changes")
        if (wait := self._wait(now)) > PATIENCE:
            raise TryLater(wait, "other chats come first")
        if is_group:
            self._groups[chat] = now + self._group_every
            self._groups.move_to_end(chat)
            while len(self._groups) > MOST_GROUPS:
                self._groups.popitem(last=False)
        await asyncio.sleep(self._take())

    def _take(self) -> float:
        now = asyncio.get_running_loop().time()
        self._free = max(self._free, now - AT_ONCE * self._each) + self._each
        return max(0.0, self._free - now)

    def _wait(self, now: float) -> float:
        return max(0.0, self._free - now)
