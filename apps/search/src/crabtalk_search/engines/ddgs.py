"""ddgs: a library that queries several engines. It is an optional dependency."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit
from crabtalk_search.errors import EngineError

from .engine import filter_usable, to_plain_text

MAX_RESULTS = 10
AskLibrary: TypeAlias = Callable[[str, int], list[dict[str, Any]]]


def ask_library(query: str, page: int) -> list[dict[str, Any]]:
    try:
        from ddgs import DDGS
    except ImportError:
        raise EngineError("it is not installed; install crabtalk-search[ddgs]") from None
    return DDGS().text(query, page=page + 1, max_results=MAX_RESULTS)


@dataclass(frozen=True, slots=True)
class DdgsEngine:
    ask: AskLibrary = ask_library
    id: str = "ddgs"
    has_pages: bool = True

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        """Runs in a thread, because the library blocks. Cancelled, the thread's result is lost."""
        try:
            return parse_results(await asyncio.to_thread(self.ask, query, page))
        except EngineError:
            raise
        except Exception as error:  # of the library, and of the engines it asks
            raise EngineError(str(error) or type(error).__name__) from None


def parse_results(entries: list[dict[str, Any]]) -> list[EngineHit]:
    return filter_usable(
        EngineHit(
            to_plain_text(entry.get("title")),
            str(entry.get("href")),
            to_plain_text(entry.get("body")),
        )
        for entry in entries
    )
