"""Anthropic's dialect: URLs, headers and bodies of requests."""

from collections.abc import Mapping
from typing import Any

import msgspec

from crabtalk.model.errors import ApiError
from crabtalk.model.http_client import HttpRequest
from crabtalk.model.messages import ModelInfo, Request
from crabtalk.model.response_reading import (
    describe_body,
    read_error_message,
    read_model_list,
    read_retry_after,
)

from .decoding import AnthropicDecoder
from .encoding import (
    encode_system,
    encode_tool,
    encode_tool_choice,
    encode_turns,
    mark_cache_points,
)
from .errors import classify_error
from .generations import (
    ADAPTIVE_THINKING,
    BOUND_THINKING,
    can_think,
    compute_max_tokens,
    encode_thinking,
    find_context_limit,
    parse_generation,
)

DEFAULT_BASE = "https://api.anthropic.com"
# The version of the API. The next one, 2026-10-21, has no temperature for any model.
API_VERSION = "2023-06-01"

BINDING_BETA = "thinking-binding-controls-2026-08-01"


class AnthropicDialect:
    """One endpoint. `base` is the part of the URL before `/v1/messages`."""

    def __init__(self, name: str, *, base: str = DEFAULT_BASE, api_key: str = "") -> None:
        self.name = name
        self.base = base.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        # Set once the API refuses thinking because the history before it has changed.
        self._drop_unbound = False
        self._limits: dict[str, int] = {}

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def build_chat_request(self, request: Request) -> HttpRequest:
        headers = self.build_headers()
        if self._drops_unbound_thinking(request):
            headers["anthropic-beta"] = BINDING_BETA
        body = msgspec.json.encode(self.build_body(request))
        return HttpRequest(f"{self.base}/v1/messages", headers, body)

    def build_headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "anthropic-version": API_VERSION,
        }
        if self._api_key:
            headers["x-api-key"] = self._api_key
        return headers

    def build_body(self, request: Request) -> dict[str, Any]:
        generation = parse_generation(request.model)
        turns = encode_turns(
            request.messages, restore=request.thinking or generation >= ADAPTIVE_THINKING
        )
        thinking = request.thinking
        if thinking and generation < ADAPTIVE_THINKING and not can_think(turns):
            thinking = False
            turns = encode_turns(request.messages, restore=False)
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": compute_max_tokens(request),
            "messages": turns,
            "stream": True,
        }
        if system := encode_system(request.messages):
            body["system"] = system
        if request.tools:
            forced = request.tool_choice not in ("auto", "none")
            # The API does not allow a forced call with thinking, so the choice is left free then.
            cannot_force = forced and (thinking or generation >= BOUND_THINKING)
            body["tools"] = [encode_tool(tool) for tool in request.tools]
            body["tool_choice"] = encode_tool_choice(
                "auto" if cannot_force else request.tool_choice
            )
        if thinking:
            body |= encode_thinking(generation, body["max_tokens"])
        elif request.temperature is not None and generation < ADAPTIVE_THINKING:
            body["temperature"] = request.temperature
        if self._drops_unbound_thinking(request):
            thinking_options = body.setdefault("thinking", {"type": "adaptive"})
            thinking_options["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
        mark_cache_points(body)
        return body

    def _drops_unbound_thinking(self, request: Request) -> bool:
        return self._drop_unbound and parse_generation(request.model) >= BOUND_THINKING

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def create_decoder(self, request: Request) -> "AnthropicDecoder":
        return AnthropicDecoder()

    def parse_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        message, code = read_error_message(body)
        return ApiError(
            classify_error(status, code, message),
            message or describe_body(status, body),
            status=status,
            retry_after=read_retry_after(headers),
        )

    def build_models_request(self) -> HttpRequest:
        # A thousand is the maximum of a page, and more models than there are.
        return HttpRequest(f"{self.base}/v1/models?limit=1000", self.build_headers(), method="GET")

    def parse_models(self, body: bytes) -> list[ModelInfo]:
        models = []
        for entry in read_model_list(body, "data"):
            if isinstance(entry, dict) and isinstance(name := entry.get("id"), str):
                limit = entry.get("max_input_tokens")
                if isinstance(limit, int):
                    self._limits[name] = limit
                models.append(ModelInfo(name, self._limits.get(name)))
        return models

    def context_limit(self, model: str) -> int | None:
        return self._limits.get(model) or find_context_limit(model)

    def drop_rejected_option(self, error: ApiError) -> bool:
        """Drop thinking that does not fit a shortened or edited history; the answers stay.

        The API's error names the option for this. It stays set, because it has no effect on
        unchanged histories.
        """
        if self._drop_unbound or error.status != 400:
            return False
        self._drop_unbound = "prefix_mismatch_behavior" in error.message
        return self._drop_unbound
