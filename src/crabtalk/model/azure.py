"""Azure's OpenAI service: OpenAI's dialect at other addresses, with the key in another header.

Two generations of addresses. The v1 API is OpenAI's own layout below `/openai/v1`. Before it, the
model is a deployment in the path, and every request names the version of the API it means.
"""

from urllib.parse import quote

from .http_client import HttpRequest
from .messages import Request
from .openai import OpenAiDialect

# The last version with a date that is not a preview; after it came v1.
DEFAULT_API_VERSION = "2024-10-21"
V1_PATH = "/openai/v1"


class AzureDialect(OpenAiDialect):
    """One resource. `base` is its endpoint, with `/openai/v1` at the end for the v1 API."""

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
        headers.pop("Authorization", None)  # there, Azure expects a token of Entra ID, not a key
        if self._api_key:
            headers["api-key"] = self._api_key
        return headers

    def build_models_request(self) -> HttpRequest:
        if self._is_v1:
            return super().build_models_request()
        return HttpRequest(
            f"{self.base}/openai/models{self._query}", self.build_headers(), method="GET"
        )
