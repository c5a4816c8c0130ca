"""Bedrock's dialect: URLs, signatures and bodies of requests."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from crabtalk.model.bedrock.sigv4 import AwsCredentials, sign_request
from crabtalk.model.errors import ApiError, ErrorKind, classify_status
from crabtalk.model.http_client import HttpRequest
from crabtalk.model.messages import ModelInfo, Request
from crabtalk.model.response_reading import describe_body, read_model_list, read_retry_after

from .credentials import NO_CREDENTIALS
from .decoding import BedrockDecoder, is_usable_model
from .encoding import encode_system, encode_tools, encode_turns, mark_cache_points
from .errors import classify_error, read_error_message
from .model_families import (
    NO_FORCED_TOOLS,
    NO_TEMPERATURE,
    THINKING_LIMIT,
    can_think,
    encode_thinking,
    find_context_limit,
    parse_claude_generation,
    takes_thoughts_back,
)

SERVICE = "bedrock"  # in signatures; the same for answers and for the list of models


class BedrockDialect:
    """One region of one account. `base` overrides the URL of the region's runtime endpoint."""

    def __init__(
        self,
        name: str,
        *,
        region: str,
        credentials: AwsCredentials,
        base: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.base = base.rstrip("/") or f"https://bedrock-runtime.{region}.amazonaws.com"
        self._region = region
        self._credentials = credentials
        self._clock = clock
        # Which models can cache changes often. After an error no cache points are sent.
        self._caching = True

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials that must not be shown. The id of an access key is no secret."""
        known = self._credentials
        return (known.secret_key, known.session_token, known.bearer)

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def build_chat_request(self, request: Request) -> HttpRequest:
        # Colons are not escaped: the HTTP client would unescape them and break the signature.
        model = quote(request.model, safe=":")
        body = msgspec.json.encode(self.build_body(request))
        return self._build_signed_request(
            "POST", f"{self.base}/model/{model}/converse-stream", body
        )

    def _build_signed_request(
        self, method: str, url: str, body: bytes | None = None
    ) -> HttpRequest:
        if not re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", self._region):
            raise ApiError(
                ErrorKind.CONFIG,
                f"{self._region!r} is no AWS region; set AWS_REGION, for example to us-east-1",
            )
        headers = {"Content-Type": "application/json"}
        if self._credentials.bearer:
            headers["Authorization"] = f"Bearer {self._credentials.bearer}"
        elif self._credentials.access_key and self._credentials.secret_key:
            headers = sign_request(
                method,
                url,
                headers,
                body or b"",
                credentials=self._credentials,
                region=self._region,
                service=SERVICE,
                moment=self._clock(),
            )
        else:
            raise ApiError(ErrorKind.CONFIG, NO_CREDENTIALS)
        return HttpRequest(url, headers, body, method)

    def build_body(self, request: Request) -> dict[str, Any]:
        generation = parse_claude_generation(request.model)
        thinking = encode_thinking(request)
        turns = encode_turns(request, restore=bool(thinking) or takes_thoughts_back(request.model))
        if thinking.get("type") == "enabled" and not can_think(turns):
            thinking = {}
            turns = encode_turns(request, restore=False)
        body: dict[str, Any] = {"messages": turns}
        if system := encode_system(request.messages):
            body["system"] = system
        if tools := encode_tools(request, is_free=bool(thinking) or generation >= NO_FORCED_TOOLS):
            body["toolConfig"] = tools
        limits: dict[str, Any] = {}
        if request.max_tokens is not None:
            limits["maxTokens"] = request.max_tokens
        elif "budget_tokens" in thinking:
            limits["maxTokens"] = THINKING_LIMIT
        # Claude does not accept a temperature while it thinks.
        if request.temperature is not None and not thinking and generation < NO_TEMPERATURE:
            limits["temperature"] = request.temperature
        if limits:
            body["inferenceConfig"] = limits
        if thinking:
            body["additionalModelRequestFields"] = {"thinking": thinking}
        if self._caching:
            mark_cache_points(body, request.model)
        return body

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def create_decoder(self, request: Request) -> "BedrockDecoder":
        return BedrockDecoder(request.model)

    def parse_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        message, code = read_error_message(body)
        code = headers.get("x-amzn-errortype") or code
        return ApiError(
            classify_error(code, message) or classify_status(status),
            message or describe_body(status, body),
            status=status,
            retry_after=read_retry_after(headers),
        )

    def build_models_request(self) -> HttpRequest:
        base = self.base.replace("bedrock-runtime", "bedrock")  # the URL of the control plane
        return self._build_signed_request("GET", f"{base}/foundation-models")

    def parse_models(self, body: bytes) -> list[ModelInfo]:
        return [
            ModelInfo(entry["modelId"], find_context_limit(entry["modelId"]))
            for entry in read_model_list(body, "modelSummaries")
            if isinstance(entry, dict) and is_usable_model(entry)
        ]

    def context_limit(self, model: str) -> int | None:
        return find_context_limit(model)

    def drop_rejected_option(self, error: ApiError) -> bool:
        message = error.message.lower()
        is_about_caching = any(
            words in message for words in ("cachepoint", "cache point", "prompt caching")
        )
        if self._caching and error.status in (400, 403) and is_about_caching:
            self._caching = False
            return True
        return False
