"""The RPC methods that devices may call on a session. Parameters and results are sealed, and no
call is handled twice.

No method gives access to a shell or to folders.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from crabtalk_web.adapter import OpenAsk
from crabtalk_web.sealing import read_binding

from .ask_answers import (
    AskAnswer,
    build_outcome,
    parse_form_answers,
    parse_label_answers,
    refuse_ask,
)
from .call_receipts import CallReceipts
from .errors import WebGatewayError
from .live_text import LiveText
from .question_tracker import QuestionTracker
from .session_identity import SessionIdentity
from .session_metadata import check_mode

# Replaying these reveals nothing new and changes nothing.
REPEATABLE_METHODS = ("watch",)
CALL_WAS_CUT = (
    "this call is too large to be shown here as a whole; allow it in the terminal, or deny it"
)

log = logging.getLogger(__name__)


class RpcTarget(Protocol):
    """The conversation that the methods act on."""

    identity: SessionIdentity
    questions: QuestionTracker
    live_text: LiveText

    @property
    def session(self) -> str: ...

    async def abort(self) -> None: ...

    async def reply_to_ask(
        self, ask: OpenAsk, answer: AskAnswer, outcome: dict[str, Any]
    ) -> bool: ...

    async def set_mode(self, mode: str) -> dict[str, Any]: ...

    async def archive_session(self) -> None: ...


class DeviceRpc:
    def __init__(self, target: RpcTarget, receipts: CallReceipts) -> None:
        self._target = target
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
    def method_names(self) -> list[str]:
        return list(self._methods)

    async def handle_call(self, name: str, params: str) -> str:
        """Return the sealed result. A failure is a result as well."""
        sealer = self._target.identity.sealer
        plain = sealer.open_bytes(params)
        if plain is None:
            return sealer.seal({"error": "the parameters cannot be opened with this session's key"})
        method = self._methods.get(name)
        if method is None:
            return sealer.seal({"error": f"there is no method {name[:80]!r} here"})
        arguments = sealer.open(params)
        binding = read_binding(arguments)
        if binding is not None and (binding.purpose, binding.record) != (
            f"rpc:{name}",
            self._target.session,
        ):
            return sealer.seal({"error": "these parameters are for something else"})
        try:
            if name not in REPEATABLE_METHODS and not await self._receipts.add_if_new(params):
                return sealer.seal({"error": "this call was made before; make it anew"})
            result = await method(arguments if isinstance(arguments, dict) else {})
        except Exception as error:
            log.warning("the call %s failed: %s", name, error)
            return sealer.seal({"error": str(error) or type(error).__name__})
        return sealer.seal_nothing() if result is None else sealer.seal(result)

    async def abort(self, arguments: dict[str, Any]) -> None:
        """Stop the turn. Succeeds as well if no turn is open."""
        await self._target.abort()

    async def communication(self, arguments: dict[str, Any]) -> dict[str, Any]:
        ask = self._target.questions.find(str(arguments.get("id")))
        if ask is None:
            return {"error": "already answered"}
        if arguments.get("status") == "cancelled":
            answer = refuse_ask(ask)
            return await self._send_answer(ask, answer, {"status": "cancelled", "answers": {}})
        answers = arguments.get("answers")
        answer = parse_form_answers(ask, answers)
        return await self._send_answer(ask, answer, build_outcome(answer, answers))

    async def permission(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The older form of an answer: labels by question, or a plain yes or no."""
        ask = self._target.questions.find(str(arguments.get("id")))
        if ask is None:
            return {"error": "already answered"}
        if arguments.get("approved") is not True:
            return await self._send_answer(ask, refuse_ask(ask), {"status": "denied"})
        updated = arguments.get("updatedInput")
        answer = parse_label_answers(
            ask, updated.get("answers") if isinstance(updated, dict) else None
        )
        is_denied = ask.is_approval and not answer.allows
        return await self._send_answer(
            ask, answer, {"status": "denied" if is_denied else "approved"}
        )

    async def _send_answer(
        self, ask: OpenAsk, answer: AskAnswer, outcome: dict[str, Any]
    ) -> dict[str, Any]:
        questions = self._target.questions
        if answer.allows and not questions.is_shown_in_full(ask):
            raise WebGatewayError(CALL_WAS_CUT)
        if not questions.claim(ask):
            return {"error": "already answered"}
        try:
            is_first = await self._target.reply_to_ask(ask, answer, outcome)
        except BaseException:
            self._target.questions.release(ask)
            raise
        return {"success": True} if is_first else {"error": "already answered"}

    async def kill_session(self, arguments: dict[str, Any]) -> dict[str, Any]:
        await self._target.archive_session()
        return {"success": True, "message": "The session is closed; the conversation stays."}

    async def set_mode(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._target.set_mode(check_mode(arguments.get("mode")))

    async def watch(self, arguments: dict[str, Any]) -> dict[str, Any]:
        segment, offset = arguments.get("segment"), arguments.get("offset")
        return await self._target.live_text.watch(
            segment if isinstance(segment, int) else 0, offset if isinstance(offset, int) else 0
        )
