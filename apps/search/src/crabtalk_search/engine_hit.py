"""Hit: one result as one engine gives it. Its place in the engine's list is its place in a list."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineHit:
    title: str
    url: str
    description: str = ""
