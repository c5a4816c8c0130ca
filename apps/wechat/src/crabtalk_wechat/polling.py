"""Polling: what people write, by asking for it from a cursor on.

The cursor moves when all it leaves behind is in the journal. When WeChat has ended the session,
somebody has to log in anew; that is looked for in the settings, so that nobody has to restart.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from crabtalk.component.gateway import Backoff, GatewayError, ServiceError, TryLater, Update

from .ilink import EXPIRED, ILink, RefusalError
from .reading import digest, read
from .state import State

EXPIRED_WORDS = (
    "WeChat has ended the session; run `crabtalk-wechat setup` and scan the code, "
    "and this program goes on by itself"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds until WeChat is asked again: when the session is over, and at most, when something
    else is wrong."""

    expired: float = 30.0
    other: float = 5.0


class Polling:
    """`renewed` is where we are and what our token is, as the settings have it now."""

    def __init__(
        self,
        ilink: ILink,
        state: State,
        renewed: Callable[[], tuple[str, str]],
        pauses: Pauses | None = None,
    ) -> None:
        self._ilink = ilink
        self._state = state
        self._renewed = renewed
        self._pauses = pauses or Pauses()
        self._open: set[str] = set()  # given, and not in the journal yet
        self._settled = asyncio.Event()
        self.is_expired = False

    def taken(self, update: str) -> None:
        self._open.discard(update)
        if not self._open:
            self._settled.set()

    async def updates(self) -> AsyncGenerator[Update, None]:
        while True:
            answer = await self._ask()
            found = self._read(answer)
            self._open = {update.id for update, _ in found}
            # Its answers could not be sent by the next process otherwise.
            if self._remember(found):
                await self._save()
            for update, _ in found:
                yield update
            while self._open:
                self._settled.clear()
                await self._settled.wait()
            cursor = answer.get("get_updates_buf")
            if isinstance(cursor, str) and cursor and cursor != self._state.cursor:
                self._state.cursor = cursor
                await self._save()

    def _remember(self, found: list[tuple[Update, str]]) -> bool:
        """Whether there is anything new in them."""
        contexts = {update.person.id: context for update, context in found if context}
        return sum(self._state.remember(*one) for one in contexts.items()) > 0

    def _read(self, answer: dict[str, Any]) -> list[tuple[Update, str]]:
        found: list[tuple[Update, str]] = []
        messages = answer.get("msgs")
        for message in messages if isinstance(messages, list) else []:
            try:
                update = read(message)
                context = str(message.get("context_token") or "")
            except Exception as error:  # whatever it is, it must not hold up the others
                log.warning("a message makes no sense: %r", error)
                raw = json.dumps(message)
                update, context = Update.left_out(digest(raw), raw), ""
            if update is not None:
                found.append((update, context))
        return found

    async def _ask(self) -> dict[str, Any]:
        backoff = Backoff(longest=self._pauses.other)
        while True:
            at_least = 0.0
            try:
                answer = await self._ilink.updates(self._state.cursor)
            except RefusalError as error:
                if error.code == EXPIRED:
                    await self._wait_for_login()
                    continue
                log.warning("WeChat says no: %s", error)
            except ServiceError as error:
                log.warning("WeChat does not answer: %s", error)
                at_least = error.seconds if isinstance(error, TryLater) else 0.0
            else:
                if self.is_expired:
                    log.info("WeChat knows us again")
                self.is_expired = False
                return answer
            await backoff.wait(at_least)

    async def _wait_for_login(self) -> None:
        if not self.is_expired:
            log.error(EXPIRED_WORDS)
        self.is_expired = True
        if self._state.cursor:  # that of a session that is no more
            self._state.cursor = ""
            await self._save()
        await asyncio.sleep(self._pauses.expired)
        try:
            base_url, token = await asyncio.to_thread(self._renewed)
        except GatewayError as error:
            log.error("the token of before stays: %s", error)  # noqa: TRY400
            return
        if token and token != self._ilink.token:
            self._ilink.base_url, self._ilink.token = base_url, token
            self._state.begin_session(token)

    async def _save(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await asyncio.to_thread(self._state.save)
                return
            except OSError as error:
                log.error("the cursor cannot be written: %s", error)  # noqa: TRY400
                await backoff.wait()
