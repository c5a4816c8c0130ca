"""Calls: what devices may ask of a session's gateway. Sealed both ways; no call is answered twice.

There are no shells and no folders among them.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from crabtalk_web.adapter import Ask
from crabtalk_web.sealing import bound_of

from .answers import Answer, outcome_of, read_form, read_labels, refuse_ask
from .errors import GatewayError
from .identity import Identity
from .live import Live
from .metadata import check_mode
from .questions import Questions
from .receipts import Receipts

# Whoever repeats these learns nothing new, and changes nothing.
HARMLESS = ("watch",)
CUT = "this call is too large to be shown here as a whole; allow it in the terminal, or deny it"

log = logging.getLogger(__name__)


class Desk(Protocol):
    """What calls act on."""

    identity: Identity
    questions: Questions
    live: Live

    @property
    def session(self) -> str: ...

    async def abort(self) -> None: ...

    async def reply(self, ask: Ask, answer: Answer, outcome: dict[str, Any]) -> bool: ...

    async def set_mode(self, mode: str) -> dict[str, Any]: ...

    async def end(self) -> None: ...


class Calls:
    def __init__(self, desk: Desk, receipts: Receipts) -> None:
        self._desk = desk
        self._receipts = receipts
        self._methods: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "abort": self.abort,
            "permission": self.permission,
            "communication": self.communication,
            "killSession": self.kill_session,
            "setMode": self.set_mode,
            "watch": self.watch,
        }

    @property
    def names(self) -> list[str]:
        return list(self._methods)

    async def serve(self, name: str, params: str) -> str:
        """The sealed answer. A failure is an answer as well."""
        sealer = self._desk.identity.sealer
        opened = sealer.open_bytes(params)
        if opened is None:
            return sealer.seal({"error": "the parameters cannot be opened with this session's key"})
        method = self._methods.get(name)
        if method is None:
            return sealer.seal({"error": f"there is no method {name[:80]!r} here"})
        given = sealer.open(params)
        bound = bound_of(given)
        if bound is not None and (bound.purpose, bound.record) != (
            f"rpc:{name}",
            self._desk.session,
        ):
            return sealer.seal({"error": "these parameters are for something else"})
        try:
            if name not in HARMLESS and not await self._receipts.is_new(params):
                return sealer.seal({"error": "this call was made before; make it anew"})
            result = await method(given if isinstance(given, dict) else {})
        except Exception as error:
            log.warning("the call %s failed: %s", name, error)
            return sealer.seal({"error": str(error) or type(error).__name__})
        return sealer.seal_nothing() if result is None else sealer.seal(result)

    async def abort(self, given: dict[str, Any]) -> None:
        """Stops the turn. With none to stop it is done as well."""
        await self._desk.abort()

    async def communication(self, given: dict[str, Any]) -> dict[str, Any]:
        ask = self._desk.questions.find(str(given.get("id")))
        if ask is None:
            return {"error": "already answered"}
        if given.get("status") == "cancelled":
            answer = refuse_ask(ask)
            return await self._reply(ask, answer, {"status": "cancelled", "answers": {}})
        answers = given.get("answers")
        answer = read_form(ask, answers)
        return await self._reply(ask, answer, outcome_of(answer, answers))

    async def permission(self, given: dict[str, Any]) -> dict[str, Any]:
        """The older way to answer: chosen labels by question, or just a yes or a no."""
        ask = self._desk.questions.find(str(given.get("id")))
        if ask is None:
            return {"error": "already answered"}
        if given.get("approved") is not True:
            return await self._reply(ask, refuse_ask(ask), {"status": "denied"})
        updated = given.get("updatedInput")
        answer = read_labels(ask, updated.get("answers") if isinstance(updated, dict) else None)
        is_denied = ask.is_approval and not answer.allows
        return await self._reply(ask, answer, {"status": "denied" if is_denied else "approved"})

    async def _reply(self, ask: Ask, answer: Answer, outcome: dict[str, Any]) -> dict[str, Any]:
        questions = self._desk.questions
        if answer.allows and not questions.is_shown_whole(ask):
            raise GatewayError(CUT)
        if not questions.take(ask):
            return {"error": "already answered"}
        try:
            is_first = await self._desk.reply(ask, answer, outcome)
        except BaseException:
            self._desk.questions.give_back(ask)
            raise
        return {"success": True} if is_first else {"error": "already answered"}

    async def kill_session(self, given: dict[str, Any]) -> dict[str, Any]:
        await self._desk.end()
        return {"success": True, "message": "The session is closed; the conversation stays."}

    async def set_mode(self, given: dict[str, Any]) -> dict[str, Any]:
        return await self._desk.set_mode(check_mode(given.get("mode")))

    async def watch(self, given: dict[str, Any]) -> dict[str, Any]:
        segment, offset = given.get("segment"), given.get("offset")
        return await self._desk.live.watch(
            segment if isinstance(segment, int) else 0, offset if isinstance(offset, int) else 0
        )
