"""One result of one engine. Its rank is its position in the engine's list."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineHit:
    title: str
    url: str
    description: str = ""
