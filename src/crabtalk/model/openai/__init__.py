"""OpenAI's chat completions, and everything that speaks them: Ollama, LM Studio, vLLM,
llama-server, OpenRouter, crabllm and the like.
"""

from .decoding import OpenAiDecoder
from .dialect import DEFAULT_BASE, OpenAiDialect

__all__ = ["DEFAULT_BASE", "OpenAiDecoder", "OpenAiDialect"]
