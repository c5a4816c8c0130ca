"""Importing crabtalk.model loads no HTTP client and no vendor's module."""

import subprocess
import sys

import pytest


@pytest.mark.req("model.import.light")
def test_no_http_client_and_no_backend_is_loaded_until_used() -> None:
    code = "import sys, crabtalk.model; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(said.stdout.split())
    assert "crabtalk.model.registry" in loaded
    heavy = {"aiohttp", "yarl", "openai", "anthropic", "google.genai", "botocore", "tomlkit"}
    assert not loaded & heavy
    backends = {f"crabtalk.model.{kind}" for kind in ("openai", "anthropic", "google", "bedrock")}
    assert not loaded & (backends | {"crabtalk.model.azure", "crabtalk.model.local.provider"})
