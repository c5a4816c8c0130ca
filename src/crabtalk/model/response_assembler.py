"""ResponseAssembler: builds one Response from the chunks of a streamed answer."""

from typing import Any

from .errors import ApiError, ErrorKind
from .messages import Chunk, FinishReason, Message, Response, ToolCall, ToolCallDelta, Usage

# A short string takes about four times the memory of its letters, so this many are joined to one.
MAX_SHORT_PIECES = 32


class ResponseAssembler:
    """Add chunks in order, then build the message.

    The pieces of a tool call have the same index: the last id and name count, arguments are joined.
    A call without an id or a name cannot be executed and is an error.
    """

    def __init__(self) -> None:
        self._text = TextBuffer()
        self._reasoning = TextBuffer()
        self._calls: dict[int, list[str]] = {}  # index: id, name, pieces of arguments
        self._opaque: dict[str, Any] = {}
        self.finish: FinishReason = ""
        self.usage = Usage()

    def add(self, chunk: Chunk) -> None:
        if chunk.text:
            self._text.add(chunk.text)
        if chunk.reasoning:
            self._reasoning.add(chunk.reasoning)
        for delta in chunk.tool_calls:
            self._add_call(delta)
        if chunk.finish:
            self.finish = chunk.finish
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.opaque:
            self._opaque |= chunk.opaque

    def _add_call(self, delta: ToolCallDelta) -> None:
        call = self._calls.setdefault(delta.index, ["", ""])
        if delta.id:
            call[0] = delta.id
        if delta.name:
            call[1] = delta.name
        call.append(delta.arguments)

    def list_named_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls whose name is known, without arguments. Some may not have an id yet."""
        return tuple(
            ToolCall(id=call[0], name=call[1]) for _, call in sorted(self._calls.items()) if call[1]
        )

    def build_tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls so far, ordered by index. Raises ApiError for an incomplete call."""
        calls = []
        for _, (call_id, name, *pieces) in sorted(self._calls.items()):
            if not call_id or not name:
                missing = "an id" if not call_id else "a name"
                raise ApiError(
                    ErrorKind.PROTOCOL,
                    f"the model called a tool ({name or call_id or 'unnamed'}) without {missing}",
                )
            calls.append(ToolCall(id=call_id, name=name, arguments="".join(pieces)))
        return tuple(calls)

    def build_message(self) -> Message:
        return Message(
            role="assistant",
            text=self._text.join(),
            reasoning=self._reasoning.join(),
            tool_calls=self.build_tool_calls(),
            opaque=self._opaque,
        )

    def build_response(self, model: str) -> Response:
        return Response(
            message=self.build_message(), finish=self.finish, usage=self.usage, model=model
        )


class TextBuffer:
    """A text that arrives in pieces."""

    __slots__ = ("_long", "_short")

    def __init__(self) -> None:
        self._long: list[str] = []
        self._short: list[str] = []

    def add(self, piece: str) -> None:
        self._short.append(piece)
        if len(self._short) >= MAX_SHORT_PIECES:
            self._long.append("".join(self._short))
            self._short.clear()

    def join(self) -> str:
        return "".join(self._long) + "".join(self._short)
