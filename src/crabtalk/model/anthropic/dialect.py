"""Anthropic's dialect: what is asked, where, and with which headers."""

from collections.abc import Mapping
from typing import Any

import msgspec

from crabtalk.model.errors import ApiError
from crabtalk.model.http import Call
from crabtalk.model.messages import ModelInfo, Request
from crabtalk.model.reading import error_words, http_phrase, listed_models, read_retry_after

from .decoding import AnthropicDecoder
from .encoding import encode_choice, encode_system, encode_tool, encode_turns, mark_prefix
from .failures import error_kind
from .generations import (
    ADAPTIVE,
    BOUND,
    ask_to_think,
    generation,
    known_limit,
    max_tokens,
    may_think,
)

DEFAULT_BASE = "https://api.anthropic.com"
# The version of the wire. The next one, 2026-10-21, has no temperature for any model.
VERSION = "2023-06-01"

BINDING_BETA = "thinking-binding-controls-2026-08-01"


class AnthropicDialect:
    """One endpoint. `base` is what stands before `/v1/messages`."""

    def __init__(self, name: str, *, base: str = DEFAULT_BASE, api_key: str = "") -> None:
        self.name = name
        self.base = base.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        # Set once the API objects to thinking from a history that was since changed.
        self._drop_unbound = False
        self._limits: dict[str, int] = {}

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def chat(self, request: Request) -> Call:
        headers = self.headers()
        if self._drops(request):
            headers["anthropic-beta"] = BINDING_BETA
        body = msgspec.json.encode(self.body(request))
        return Call(f"{self.base}/v1/messages", headers, body)

    def headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "anthropic-version": VERSION,
        }
        if self._api_key:
            headers["x-api-key"] = self._api_key
        return headers

    def body(self, request: Request) -> dict[str, Any]:
        born = generation(request.model)
        turns = encode_turns(request.messages, restore=request.thinking or born >= ADAPTIVE)
        thinking = request.thinking
        if thinking and born < ADAPTIVE and not may_think(turns):
            thinking = False
            turns = encode_turns(request.messages, restore=False)
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": max_tokens(request),
            "messages": turns,
            "stream": True,
        }
        if system := encode_system(request.messages):
            body["system"] = system
        if request.tools:
            forced = request.tool_choice not in ("auto", "none")
            # With thinking the API refuses to force a call. Better a free choice than no answer.
            free = forced and (thinking or born >= BOUND)
            body["tools"] = [encode_tool(tool) for tool in request.tools]
            body["tool_choice"] = encode_choice("auto" if free else request.tool_choice)
        if thinking:
            body |= ask_to_think(born, body["max_tokens"])
        elif request.temperature is not None and born < ADAPTIVE:
            body["temperature"] = request.temperature
        if self._drops(request):
            asked = body.setdefault("thinking", {"type": "adaptive"})
            asked["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
        mark_prefix(body)
        return body

    def _drops(self, request: Request) -> bool:
        return self._drop_unbound and generation(request.model) >= BOUND

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def decoder(self, request: Request) -> "AnthropicDecoder":
        return AnthropicDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        message, code = error_words(body)
        return ApiError(
            error_kind(status, code, message),
            message or http_phrase(status, body),
            status=status,
            retry_after=read_retry_after(headers),
        )

    def list_models(self) -> Call:
        # A thousand is the most a page holds, and more than there are.
        return Call(f"{self.base}/v1/models?limit=1000", self.headers(), method="GET")

    def read_models(self, body: bytes) -> list[ModelInfo]:
        found = []
        for entry in listed_models(body, "data"):
            if isinstance(entry, dict) and isinstance(name := entry.get("id"), str):
                limit = entry.get("max_input_tokens")
                if isinstance(limit, int):
                    self._limits[name] = limit
                found.append(ModelInfo(name, self._limits.get(name)))
        return found

    def context_limit(self, model: str) -> int | None:
        return self._limits.get(model) or known_limit(model)

    def relax(self, error: ApiError) -> bool:
        """A history that was shortened or edited keeps its answers, if not all of their thinking.

        The API names the switch in the sentence it refuses with; it is thrown for good, because
        nothing is lost by it where histories are whole.
        """
        if self._drop_unbound or error.status != 400:
            return False
        self._drop_unbound = "prefix_mismatch_behavior" in error.message
        return self._drop_unbound
