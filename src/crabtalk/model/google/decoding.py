"""Decodes the events of a Gemini answer to chunks."""

import msgspec

from crabtalk.model.errors import ApiError, ErrorKind
from crabtalk.model.messages import Chunk, FinishReason, ToolCallDelta, Usage
from crabtalk.model.sse import SseDecoder

from .encoding import ThoughtSignatures
from .errors import build_blocked_error, find_trailing_error, read_stream_error
from .wire_types import (
    GoogleCandidate,
    GoogleEvent,
    GoogleFunctionCall,
    GooglePart,
    GoogleUsageMetadata,
)

FINISHES: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "filtered",
    "RECITATION": "filtered",
    "PROHIBITED_CONTENT": "filtered",
    "BLOCKLIST": "filtered",
    "SPII": "filtered",
    "IMAGE_SAFETY": "filtered",
    "IMAGE_PROHIBITED_CONTENT": "filtered",
    "IMAGE_RECITATION": "filtered",
    "LANGUAGE": "filtered",
    # Cut off for an unknown reason; "stop" would mean that the model had finished.
    "OTHER": "filtered",
}

# The model wrote something that the API could not turn into an answer.
BROKEN_FINISHES = frozenset(
    {
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
    }
)

# Bytes of an error outside any event.
MAX_TAIL = 64 * 1024


EVENT_DECODER = msgspec.json.Decoder(GoogleEvent)


class GoogleDecoder:
    """Decodes events up to the end of the body. A finish reason marks a complete answer.

    Gemini rarely gives calls an id. They get `call_<response id>_<n>`, which is the same each time
    the same bytes are decoded, and different in every answer. If there is no response id either,
    `turn` is used, the number of messages before this answer: it is unique while the history grows.
    """

    def __init__(self, turn: int = 0) -> None:
        self.is_over = False  # Gemini sends no end marker
        self._events = SseDecoder()
        self._finished = False
        self._response = str(turn)
        self._calls = 0
        self._signatures = ThoughtSignatures()
        self._tail = bytearray()  # may hold an error outside any event

    def feed(self, data: bytes) -> list[Chunk]:
        chunks = []
        for _, event in self._events.feed(data):
            chunk = self._read(event)
            if chunk is not None:
                chunks.append(chunk)
        self._tail += data
        del self._tail[:-MAX_TAIL]
        return chunks

    def end(self) -> list[Chunk]:
        chunks = [
            chunk for _, event in self._events.end() if (chunk := self._read(event)) is not None
        ]
        if not self._finished:
            raise find_trailing_error(bytes(self._tail)) or ApiError(
                ErrorKind.CONNECTION, "the stream ended before the answer did"
            )
        return chunks

    def _read(self, data: bytes) -> Chunk | None:
        event = read_event(data)
        if event.error:
            raise read_stream_error(event.error)
        if event.prompt_feedback is not None and event.prompt_feedback.block_reason:
            raise build_blocked_error(event.prompt_feedback)
        if event.response_id:
            self._response = event.response_id
        usage = read_usage(event.usage_metadata)
        # We never request more than one candidate.
        candidate = event.candidates[0] if event.candidates else GoogleCandidate()
        parts = (candidate.content and candidate.content.parts) or []
        text, reasoning, calls = self._read_parts(parts)
        finish = self._read_finish(candidate)
        is_signed = any(part.thought_signature for part in parts)
        if not (text or reasoning or calls or finish or usage or is_signed):
            return None
        return Chunk(
            text=text,
            reasoning=reasoning,
            tool_calls=calls,
            finish=finish,
            usage=usage,
            opaque={"google": self._signatures.opaque()} if is_signed else {},
        )

    def _read_parts(self, parts: list[GooglePart]) -> tuple[str, str, tuple[ToolCallDelta, ...]]:
        text = reasoning = ""
        calls = []
        for part in parts:
            signature = part.thought_signature or ""
            piece = part.text or ""
            if part.function_call is not None:
                calls.append(self._read_call(part.function_call, signature))
            elif part.thought:
                reasoning += piece
                self._signatures.add_span("reasoning", len(piece), signature)
            else:
                text += piece
                self._signatures.add_span("text", len(piece), signature)
        return text, reasoning, tuple(calls)

    def _read_call(self, call: GoogleFunctionCall, signature: str) -> ToolCallDelta:
        """Gemini sends calls in one piece."""
        index = self._calls
        self._calls += 1
        call_id = call.id or f"call_{self._response}_{index}"
        self._signatures.add_call(call_id, signature)
        return ToolCallDelta(
            index=index,
            id=call_id,
            name=call.name or "",
            arguments=msgspec.json.encode(call.args or {}).decode(),
        )

    def _read_finish(self, candidate: GoogleCandidate) -> FinishReason:
        reason = candidate.finish_reason
        if not reason or reason == "FINISH_REASON_UNSPECIFIED":
            return ""
        if reason in BROKEN_FINISHES:
            words = reason.lower().replace("_", " ")
            raise ApiError(
                ErrorKind.PROTOCOL,
                candidate.finish_message or f"the model's answer cannot be used: {words}",
            )
        self._finished = True
        finish = FINISHES.get(reason, "stop")
        return "tool_calls" if finish == "stop" and self._calls else finish


def read_event(data: bytes) -> GoogleEvent:
    try:
        return EVENT_DECODER.decode(data)
    except msgspec.ValidationError as error:
        raise ApiError(
            ErrorKind.PROTOCOL, f"the stream holds something other than answers: {error}"
        ) from None
    except (ValueError, RecursionError):
        start = data[:80].decode(errors="replace")
        raise ApiError(ErrorKind.PROTOCOL, f"the answer is not JSON: {start!r}") from None


def read_usage(usage: GoogleUsageMetadata | None) -> Usage | None:
    """Read the usage, which comes with nearly every event and is a running total."""
    if usage is None:
        return None
    prompt = usage.prompt_token_count or 0
    completion = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    hit = usage.cached_content_token_count
    return Usage(
        prompt=prompt,
        completion=completion,
        total=usage.total_token_count or prompt + completion,
        cache_hit=hit,
        cache_miss=None if hit is None else max(prompt - hit, 0),
        reasoning=usage.thoughts_token_count,
    )
