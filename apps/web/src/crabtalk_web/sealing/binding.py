"""Binds a sealed value to its purpose, inside the seal.

One key seals a session's messages, its metadata and the calls made to it, so a malicious relay
could pass off one as another, or replay an old call. Readers that do not know the key ignore it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BINDING_KEY = "crabtalkBound"


@dataclass(frozen=True, slots=True)
class SealBinding:
    purpose: str
    record: str
    counter: int


def bind_value(value: Mapping[str, Any], to: SealBinding) -> dict[str, Any]:
    return {**value, BINDING_KEY: [to.purpose, to.record, to.counter]}


def read_binding(value: object) -> SealBinding | None:
    """Return the purpose a value was sealed for; None if it has none."""
    binding = value.get(BINDING_KEY) if isinstance(value, dict) else None
    match binding:
        case [str(purpose), str(record), int(counter)] if not isinstance(counter, bool):
            return SealBinding(purpose, record, counter)
    return None
