"""Gemini's dialect: URLs, headers and bodies of requests.

Gemini caches common prefixes of requests by itself, so a stable prefix is enough and no cache hints
are sent. `cachedContentTokenCount` says how much came from the cache.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from crabtalk.model.errors import ApiError
from crabtalk.model.http_client import HttpRequest
from crabtalk.model.messages import ModelInfo, Request
from crabtalk.model.response_reading import read_model_list

from .decoding import GoogleDecoder
from .encoding import (
    FOREIGN_SIGNATURE,
    encode_contents,
    encode_generation_config,
    encode_tool,
    encode_tool_choice,
)
from .errors import read_error

DEFAULT_BASE = "https://generativelanguage.googleapis.com/v1beta"


class GoogleDialect:
    """One endpoint. `base` ends in the API's version; `/v1beta` is added if there is none.

    The key is sent in a header, never in the URL, because proxies and servers log URLs.
    """

    def __init__(self, name: str, *, base: str = DEFAULT_BASE, api_key: str = "") -> None:
        self.name = name
        self.base = add_api_version(base)
        self._api_key = api_key
        # Set once a model requires signatures for calls that other models made.
        self._sign_foreign = False
        self._limits: dict[str, int] = {}

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def build_chat_request(self, request: Request) -> HttpRequest:
        url = f"{self.base}/{build_model_path(request.model)}:streamGenerateContent?alt=sse"
        return HttpRequest(url, self.build_headers(), msgspec.json.encode(self.build_body(request)))

    def build_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._api_key:
            headers["x-goog-api-key"] = self._api_key
        return headers

    def build_body(self, request: Request) -> dict[str, Any]:
        foreign = FOREIGN_SIGNATURE if self._sign_foreign else ""
        body: dict[str, Any] = {"contents": encode_contents(request.messages, foreign)}
        system = [{"text": m.text} for m in request.messages if m.role == "system" and m.text]
        if system:
            body["systemInstruction"] = {"parts": system}
        if request.tools:
            body["tools"] = [{"functionDeclarations": [encode_tool(t) for t in request.tools]}]
            body["toolConfig"] = {"functionCallingConfig": encode_tool_choice(request.tool_choice)}
        if generation := encode_generation_config(request):
            body["generationConfig"] = generation
        return body

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def create_decoder(self, request: Request) -> "GoogleDecoder":
        return GoogleDecoder(turn=len(request.messages))

    def parse_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        return read_error(status, headers, body)

    def build_models_request(self) -> HttpRequest:
        """Request one page of 1000, the API's maximum, which is far more models than there are."""
        return HttpRequest(f"{self.base}/models?pageSize=1000", self.build_headers(), method="GET")

    def parse_models(self, body: bytes) -> list[ModelInfo]:
        entries = read_model_list(body, "models")
        models = [info for entry in entries if (info := parse_model(entry)) is not None]
        self._limits |= {i.name: i.context_limit for i in models if i.context_limit is not None}
        return models

    def context_limit(self, model: str) -> int | None:
        name = model.removeprefix("models/")
        return self._limits.get(name) or find_context_limit(name)

    def drop_rejected_option(self, error: ApiError) -> bool:
        if (
            not self._sign_foreign
            and error.status == 400
            and "missing a thought_signature" in error.message
        ):
            self._sign_foreign = True
            return True
        return False


def add_api_version(base: str) -> str:
    base = base.rstrip("/")
    return base if re.search(r"/v\d+(alpha|beta)?\d*$", base) else f"{base}/v1beta"


def build_model_path(model: str) -> str:
    name = quote(model, safe="/")
    return name if name.startswith(("models/", "tunedModels/")) else f"models/{name}"


def parse_model(entry: Any) -> ModelInfo | None:
    """Return None for models that do not generate content, such as embedding models."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return None
    if "generateContent" not in (entry.get("supportedGenerationMethods") or ()):
        return None
    limit = entry.get("inputTokenLimit")
    return ModelInfo(
        entry["name"].removeprefix("models/"), limit if isinstance(limit, int) else None
    )


# All plain text models since 2.0 have this limit; those for images and speech have less.
MILLION_TOKEN_MODELS = re.compile(
    r"gemini-[23](\.\d+)?-(pro|flash|flash-lite)(-(preview|latest|exp|\d[\d-]*))*"
)


def find_context_limit(name: str) -> int | None:
    return 1_048_576 if MILLION_TOKEN_MODELS.fullmatch(name) else None
