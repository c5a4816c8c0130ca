"""Gemini's dialect: what is asked, where, and with which headers.

Gemini caches prefixes that requests have in common by itself, so there is no hint to give: a
stable prefix is enough, and `cachedContentTokenCount` tells how much of it was found again.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from crabtalk.model.errors import ApiError
from crabtalk.model.http import Call
from crabtalk.model.messages import ModelInfo, Request
from crabtalk.model.reading import listed_models

from .decoding import GoogleDecoder
from .encoding import (
    FOREIGN_SIGNATURE,
    encode_choice,
    encode_contents,
    encode_generation,
    encode_tool,
)
from .failures import read_error

DEFAULT_BASE = "https://generativelanguage.googleapis.com/v1beta"


class GoogleDialect:
    """One endpoint. `base` ends in the API's version; one that names none gets `/v1beta`.

    The key travels in a header, never in the URL, which others log.
    """

    def __init__(self, name: str, *, base: str = DEFAULT_BASE, api_key: str = "") -> None:
        self.name = name
        self.base = versioned(base)
        self._api_key = api_key
        # Only models that insist on signatures get one for calls that other models made.
        self._sign_foreign = False
        self._limits: dict[str, int] = {}

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def chat(self, request: Request) -> Call:
        url = f"{self.base}/{resource(request.model)}:streamGenerateContent?alt=sse"
        return Call(url, self.headers(), msgspec.json.encode(self.body(request)))

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._api_key:
            headers["x-goog-api-key"] = self._api_key
        return headers

    def body(self, request: Request) -> dict[str, Any]:
        foreign = FOREIGN_SIGNATURE if self._sign_foreign else ""
        body: dict[str, Any] = {"contents": encode_contents(request.messages, foreign)}
        system = [{"text": m.text} for m in request.messages if m.role == "system" and m.text]
        if system:
            body["systemInstruction"] = {"parts": system}
        if request.tools:
            body["tools"] = [{"functionDeclarations": [encode_tool(t) for t in request.tools]}]
            body["toolConfig"] = {"functionCallingConfig": encode_choice(request.tool_choice)}
        if generation := encode_generation(request):
            body["generationConfig"] = generation
        return body

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def decoder(self, request: Request) -> "GoogleDecoder":
        return GoogleDecoder(turn=len(request.messages))

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        return read_error(status, headers, body)

    def list_models(self) -> Call:
        """One page: 1000 is the most the API gives, and many times what it has."""
        return Call(f"{self.base}/models?pageSize=1000", self.headers(), method="GET")

    def read_models(self, body: bytes) -> list[ModelInfo]:
        entries = listed_models(body, "models")
        found = [info for entry in entries if (info := read_model(entry)) is not None]
        self._limits |= {i.name: i.context_limit for i in found if i.context_limit is not None}
        return found

    def context_limit(self, model: str) -> int | None:
        name = model.removeprefix("models/")
        return self._limits.get(name) or known_limit(name)

    def relax(self, error: ApiError) -> bool:
        if (
            not self._sign_foreign
            and error.status == 400
            and "missing a thought_signature" in error.message
        ):
            self._sign_foreign = True
            return True
        return False


def versioned(base: str) -> str:
    base = base.rstrip("/")
    return base if re.search(r"/v\d+(alpha|beta)?\d*$", base) else f"{base}/v1beta"


def resource(model: str) -> str:
    name = quote(model, safe="/")
    return name if name.startswith(("models/", "tunedModels/")) else f"models/{name}"


def read_model(entry: Any) -> ModelInfo | None:
    """None for what is no model that answers: embeddings, say."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return None
    if "generateContent" not in (entry.get("supportedGenerationMethods") or ()):
        return None
    limit = entry.get("inputTokenLimit")
    return ModelInfo(
        entry["name"].removeprefix("models/"), limit if isinstance(limit, int) else None
    )


# All plain text models since 2.0 read as much; those for images and speech read less.
MILLION = re.compile(r"gemini-[23](\.\d+)?-(pro|flash|flash-lite)(-(preview|latest|exp|\d[\d-]*))*")


def known_limit(name: str) -> int | None:
    return 1_048_576 if MILLION.fullmatch(name) else None
