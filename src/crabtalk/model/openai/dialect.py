"""OpenAI's dialect: URLs, headers and bodies of requests, and known limits of models."""

from collections.abc import Mapping
from typing import Any

import msgspec

from crabtalk.model.errors import ApiError
from crabtalk.model.http_client import HttpRequest
from crabtalk.model.messages import ModelInfo, Request
from crabtalk.model.response_reading import read_model_list

from .decoding import OpenAiDecoder
from .encoding import compute_cache_key, encode_messages, encode_tool, encode_tool_choice
from .errors import read_error

DEFAULT_BASE = "https://api.openai.com/v1"


class OpenAiDialect:
    """One endpoint. `base` is the part of the URL before `/chat/completions`."""

    def __init__(self, name: str, *, base: str = DEFAULT_BASE, api_key: str = "") -> None:
        self.name = name
        self.base = base
        self._api_key = api_key
        self._official = base == DEFAULT_BASE
        # Servers support different options. An option that a server rejects is not sent again.
        self._ask_usage = True
        self._max_tokens = "max_completion_tokens" if self._official else "max_tokens"
        self._limits: dict[str, int] = {}

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def build_chat_request(self, request: Request) -> HttpRequest:
        return HttpRequest(
            self.build_chat_url(request),
            self.build_headers(),
            msgspec.json.encode(self.build_body(request)),
        )

    def build_chat_url(self, request: Request) -> str:
        return f"{self.base}/chat/completions"

    def build_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers

    def build_body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "messages": encode_messages(request.messages),
            "stream": True,
        }
        if self._ask_usage:
            body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [encode_tool(tool) for tool in request.tools]
            if request.tool_choice != "auto":  # auto is the default
                body["tool_choice"] = encode_tool_choice(request.tool_choice)
        if request.thinking:
            body["reasoning_effort"] = "high"
        if request.max_tokens is not None:
            body[self._max_tokens] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if self._official:
            # OpenAI caches prefixes by itself; the key routes equal prefixes to the same cache.
            body["prompt_cache_key"] = compute_cache_key(request)
        return body

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def create_decoder(self, request: Request) -> OpenAiDecoder:
        return OpenAiDecoder()

    def parse_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        return read_error(status, headers, body)

    def build_models_request(self) -> HttpRequest:
        return HttpRequest(f"{self.base}/models", self.build_headers(), method="GET")

    def parse_models(self, body: bytes) -> list[ModelInfo]:
        models = []
        for entry in read_model_list(body, "data"):
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                limit = read_context_limit(entry)
                if limit is not None:
                    self._limits[entry["id"]] = limit
                models.append(ModelInfo(entry["id"], limit))
        return models

    def context_limit(self, model: str) -> int | None:
        return self._limits.get(model) or find_context_limit(model)

    def drop_rejected_option(self, error: ApiError) -> bool:
        if self._ask_usage and "stream_options" in error.message:
            self._ask_usage = False
            return True
        if self._max_tokens == "max_tokens" and "max_completion_tokens" in error.message:
            self._max_tokens = "max_completion_tokens"
            return True
        return False


def read_context_limit(entry: dict[str, Any]) -> int | None:
    """Read the context window, for which servers have different names."""
    for section in (entry, entry.get("meta") or {}, entry.get("top_provider") or {}):
        for name in ("context_length", "max_model_len", "context_window", "n_ctx_train"):
            if isinstance(value := section.get(name), int):
                return value
    return None


KNOWN_LIMITS = (
    ("gpt-5", 400_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
)


def find_context_limit(model: str) -> int | None:
    name = model.rsplit("/", 1)[-1]
    return next((limit for prefix, limit in KNOWN_LIMITS if name.startswith(prefix)), None)
