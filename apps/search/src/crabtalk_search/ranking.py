"""Ranking: the lists of several engines become one.

A page scores the sum of 1/position over the engines that found it, and half a point for each engine
after the first. Engines write the same address in different ways, so pages are compared by a key.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .engine_hit import EngineHit

ENGINE_BONUS = 0.5
TRACKING_PATTERN = re.compile(r"utm_[^=]*|fbclid|gclid|ref")


@dataclass(slots=True)
class SearchResult:
    """A page, with the engines that found it."""

    title: str
    url: str
    description: str
    engines: list[str] = field(default_factory=list)
    score: float = 0.0


def rank_hits(found: Mapping[str, Sequence[EngineHit]], limit: int) -> list[SearchResult]:
    """The best `limit` pages of what was found, best first; equals in the order of finding."""
    results: dict[str, SearchResult] = {}
    for engine, hits in found.items():
        for position, hit in enumerate(hits, 1):
            result = results.setdefault(
                normalize_url(hit.url), SearchResult(hit.title, hit.url, "")
            )
            if engine in result.engines:
                continue  # an engine's second mention of a page is no second opinion
            result.score += 1 / position + (ENGINE_BONUS if result.engines else 0)
            result.engines.append(engine)
            result.description = max(result.description, hit.description, key=len)
            result.title = result.title or hit.title
    return sorted(results.values(), key=lambda result: -result.score)[:limit]


def normalize_url(url: str) -> str:
    """The same for addresses that differ by `www.`, a last slash, or what tracks readers."""
    address, question, query = url.partition("?")
    if question:
        query, hash_mark, fragment = query.partition("#")
        kept = [pair for pair in query.split("&") if not is_tracking_parameter(pair)]
        rest = "&".join(kept)
        url = address + (f"?{rest}" if rest else "") + hash_mark + fragment
    return url.replace("://www.", "://", 1).removesuffix("/")


def is_tracking_parameter(pair: str) -> bool:
    return TRACKING_PATTERN.fullmatch(pair.partition("=")[0]) is not None
