"""ddgs: a library that asks several engines in ways of its own. Used where it is installed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from crabtalk_search.errors import EngineError
from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import plain, usable

MOST = 10
Ask: TypeAlias = Callable[[str, int], list[dict[str, Any]]]


def ask_library(query: str, page: int) -> list[dict[str, Any]]:
    try:
        from ddgs import DDGS
    except ImportError:
        raise EngineError("it is not installed; install crabtalk-search[ddgs]") from None
    return DDGS().text(query, page=page + 1, max_results=MOST)


@dataclass(frozen=True, slots=True)
class Ddgs:
    ask: Ask = ask_library
    id: str = "ddgs"
    has_pages: bool = True

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        """In a thread: the library blocks. Cancelled, the thread ends by itself, unheard."""
        try:
            return read(await asyncio.to_thread(self.ask, query, page))
        except EngineError:
            raise
        except Exception as error:  # the library's own, and those of what it asks
            raise EngineError(str(error) or type(error).__name__) from None


def read(entries: list[dict[str, Any]]) -> list[Hit]:
    return usable(
        Hit(plain(entry.get("title")), str(entry.get("href")), plain(entry.get("body")))
        for entry in entries
    )
