"""Azure's OpenAI service: OpenAI's dialect with other URLs, and the key in another header.

There are two URL layouts. The v1 API has OpenAI's own layout below `/openai/v1`. In the older one
the model is a deployment in the path, and every request has the API version.
"""

from urllib.parse import quote

from .http_client import HttpRequest
from .messages import Request
from .openai import OpenAiDialect

# The last dated version that is not a preview; v1 came after it.
DEFAULT_API_VERSION = "2024-10-21"
V1_PATH = "/openai/v1"


class AzureDialect(OpenAiDialect):
    """One Azure resource. `base` is its endpoint, which ends in `/openai/v1` for the v1 API."""

    def __init__(self, name: str, *, base: str, api_key: str = "", api_version: str = "") -> None:
        super().__init__(name, base=base.rstrip("/").removesuffix("/openai"), api_key=api_key)
        self._is_v1 = self.base.endswith(V1_PATH)
        self._query = f"?api-version={quote(api_version or DEFAULT_API_VERSION)}"

    def build_chat_url(self, request: Request) -> str:
        if self._is_v1:
            return super().build_chat_url(request)
        deployment = quote(request.model, safe="")
        return f"{self.base}/openai/deployments/{deployment}/chat/completions{self._query}"

    def build_headers(self) -> dict[str, str]:
        headers = super().build_headers()
        headers.pop("Authorization", None)  # Azure expects an Entra ID token there, not a key
        if self._api_key:
            headers["api-key"] = self._api_key
        return headers

    def build_models_request(self) -> HttpRequest:
        if self._is_v1:
            return super().build_models_request()
        return HttpRequest(
            f"{self.base}/openai/models{self._query}", self.build_headers(), method="GET"
        )
