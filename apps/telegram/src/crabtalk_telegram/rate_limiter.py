"""Limits the rate of messages, so that Telegram does not have to reject any.

Telegram allows about thirty messages a second for all chats, and twenty a minute for a group. A bot
that goes on after it was told to wait is blocked for a while.
"""

import asyncio
from collections import OrderedDict

from crabtalk.gateway import RetryLaterError

MESSAGES_PER_SECOND = 25.0
# Messages that may be sent at once after a quiet second.
BURST_SIZE = 20
GROUP_INTERVAL = 3.0
# An edit that would have to wait longer is better made later, with more text.
MAX_EDIT_WAIT = 1.0
MAX_GROUPS = 1024


class RateLimiter:
    def __init__(
        self, a_second: float = MESSAGES_PER_SECOND, group_every: float = GROUP_INTERVAL
    ) -> None:
        self._interval = 1 / a_second
        self._group_interval = group_every
        self._free_at = 0.0  # when the next message may be sent, by the loop's clock
        self._groups: OrderedDict[str, float] = OrderedDict()

    async def wait_to_send(self) -> None:
        """Wait until a message may be sent. Cancelled, its slot stays used."""
        await asyncio.sleep(self._reserve_slot())

    async def wait_to_edit(self, chat: str, *, is_group: bool) -> None:
        """Wait until a message may be edited. Raises RetryLaterError if that is not soon."""
        now = asyncio.get_running_loop().time()
        if is_group and (wait := self._groups.get(chat, 0.0) - now) > 0:
            raise RetryLaterError(wait, "a group takes few changes")
        if (wait := self._time_until_free(now)) > MAX_EDIT_WAIT:
            raise RetryLaterError(wait, "other chats come first")
        if is_group:
            self._groups[chat] = now + self._group_interval
            self._groups.move_to_end(chat)
            while len(self._groups) > MAX_GROUPS:
                self._groups.popitem(last=False)
        await asyncio.sleep(self._reserve_slot())

    def _reserve_slot(self) -> float:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - BURST_SIZE * self._interval) + self._interval
        return max(0.0, self._free_at - now)

    def _time_until_free(self, now: float) -> float:
        return max(0.0, self._free_at - now)
