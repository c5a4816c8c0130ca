"""Ranking: merges the result lists of several engines.

A page scores the sum of 1/position over the engines that found it, and half a point for each engine
after the first. Engines write one URL in different ways, so URLs are normalised for comparison.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .engine_hit import EngineHit

ENGINE_BONUS = 0.5
TRACKING_PATTERN = re.compile(r"utm_[^=]*|fbclid|gclid|ref")


@dataclass(slots=True)
class SearchResult:
    """A page, and the engines that found it."""

    title: str
    url: str
    description: str
    engines: list[str] = field(default_factory=list)
    score: float = 0.0


def rank_hits(hits_by_engine: Mapping[str, Sequence[EngineHit]], limit: int) -> list[SearchResult]:
    """The best `limit` pages, best first; pages with the same score in order of discovery."""
    results: dict[str, SearchResult] = {}
    for engine, hits in hits_by_engine.items():
        for position, hit in enumerate(hits, 1):
            result = results.setdefault(
                normalize_url(hit.url), SearchResult(hit.title, hit.url, "")
            )
            if engine in result.engines:
                continue  # count each engine once per page
            result.score += 1 / position + (ENGINE_BONUS if result.engines else 0)
            result.engines.append(engine)
            result.description = max(result.description, hit.description, key=len)
            result.title = result.title or hit.title
    return sorted(results.values(), key=lambda result: -result.score)[:limit]


def normalize_url(url: str) -> str:
    """Remove differences that do not matter: `www.`, a trailing slash, tracking parameters."""
    address, question, query = url.partition("?")
    if question:
        query, hash_mark, fragment = query.partition("#")
        parameters = [pair for pair in query.split("&") if not is_tracking_parameter(pair)]
        rest = "&".join(parameters)
        url = address + (f"?{rest}" if rest else "") + hash_mark + fragment
    return url.replace("://www.", "://", 1).removesuffix("/")


def is_tracking_parameter(pair: str) -> bool:
    return TRACKING_PATTERN.fullmatch(pair.partition("=")[0]) is not None
