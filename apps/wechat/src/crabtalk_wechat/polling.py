"""Polling: fetches messages from a cursor on.

The cursor moves when all messages before it are in the journal. When WeChat has ended the session,
a person has to log in again; polling watches the settings for the new token, so that the gateway
needs no restart.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from crabtalk.gateway import Backoff, ChatServiceError, GatewayError, RetryLaterError, Update

from .ilink import EXPIRED_CODE, ILinkClient, ILinkError
from .message_parser import hash_text, parse_message
from .state import WeChatState

EXPIRED_WORDS = (
    "WeChat has ended the session; run `crabtalk-wechat setup` and scan the code, "
    "and this program goes on by itself"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PollDelays:
    """Seconds until the next request: with an expired session, and at most after other errors."""

    expired: float = 30.0
    other: float = 5.0


class WeChatPolling:
    """`load_login` returns the base URL and the token that are in the settings now."""

    def __init__(
        self,
        ilink: ILinkClient,
        state: WeChatState,
        load_login: Callable[[], tuple[str, str]],
        delays: PollDelays | None = None,
    ) -> None:
        self._ilink = ilink
        self._state = state
        self._load_login = load_login
        self._delays = delays or PollDelays()
        self._unacknowledged: set[str] = set()  # yielded, and not in the journal yet
        self._all_acknowledged = asyncio.Event()
        self.is_expired = False

    def acknowledge(self, update: str) -> None:
        self._unacknowledged.discard(update)
        if not self._unacknowledged:
            self._all_acknowledged.set()

    async def updates(self) -> AsyncGenerator[Update, None]:
        while True:
            answer = await self._fetch_updates()
            received = self._parse_answer(answer)
            self._unacknowledged = {update.id for update, _ in received}
            # Saved first: after a crash, the next process needs the contexts for its answers.
            if self._remember_contexts(received):
                await self._save_state()
            for update, _ in received:
                yield update
            while self._unacknowledged:
                self._all_acknowledged.clear()
                await self._all_acknowledged.wait()
            cursor = answer.get("get_updates_buf")
            if isinstance(cursor, str) and cursor and cursor != self._state.cursor:
                self._state.cursor = cursor
                await self._save_state()

    def _remember_contexts(self, received: list[tuple[Update, str]]) -> bool:
        """Whether any of them is new."""
        contexts = {update.person.id: context for update, context in received if context}
        return sum(self._state.remember_context(*item) for item in contexts.items()) > 0

    def _parse_answer(self, answer: dict[str, Any]) -> list[tuple[Update, str]]:
        received: list[tuple[Update, str]] = []
        messages = answer.get("msgs")
        for message in messages if isinstance(messages, list) else []:
            try:
                update = parse_message(message)
                context = str(message.get("context_token") or "")
            except Exception as error:  # no parse error may hold up the other messages
                log.warning("a message makes no sense: %r", error)
                raw = json.dumps(message)
                update, context = Update.unreadable(hash_text(raw), raw), ""
            if update is not None:
                received.append((update, context))
        return received

    async def _fetch_updates(self) -> dict[str, Any]:
        backoff = Backoff(longest=self._delays.other)
        while True:
            at_least = 0.0
            try:
                answer = await self._ilink.get_updates(self._state.cursor)
            except ILinkError as error:
                if error.code == EXPIRED_CODE:
                    await self._wait_for_login()
                    continue
                log.warning("WeChat says no: %s", error)
            except ChatServiceError as error:
                log.warning("WeChat does not answer: %s", error)
                at_least = error.seconds if isinstance(error, RetryLaterError) else 0.0
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
        if self._state.cursor:  # it belongs to the expired session
            self._state.cursor = ""
            await self._save_state()
        await asyncio.sleep(self._delays.expired)
        try:
            base_url, token = await asyncio.to_thread(self._load_login)
        except GatewayError as error:
            log.error("the token of before stays: %s", error)  # noqa: TRY400
            return
        if token and token != self._ilink.token:
            self._ilink.base_url, self._ilink.token = base_url, token
            self._state.begin_session(token)

    async def _save_state(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await asyncio.to_thread(self._state.save)
                return
            except OSError as error:
                log.error("the cursor cannot be written: %s", error)  # noqa: TRY400
                await backoff.wait()
