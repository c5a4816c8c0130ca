"""OpenAI's chat completions API, which many servers implement: Ollama, LM Studio, vLLM,
llama-server, OpenRouter, crabllm and others.
"""

from .decoding import OpenAiDecoder
from .dialect import DEFAULT_BASE, OpenAiDialect

__all__ = ["DEFAULT_BASE", "OpenAiDecoder", "OpenAiDialect"]
