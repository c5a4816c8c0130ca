"""What `crabtalkd models` shows: every provider, whether it can be used, and what it offers."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crabtalk.model import WAYS_ON, ApiError, Entry, Registry, open_registry

# Providers are asked side by side; one that takes longer is said not to answer.
PATIENCE = 10.0
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One provider."""

    name: str
    kind: str
    source: str
    models: list[str]
    problem: str
    note: str = ""


async def survey(document: dict[str, Any], models_directory: Path) -> tuple[list[Row], str]:
    """All providers, and the model that answers when none is named (empty: none would)."""
    registry = await open_registry(document, models_directory=models_directory)
    try:
        rows = await asyncio.gather(*(look_at(registry, entry) for entry in registry.entries))
        try:
            default = await registry.default_model()
        except ApiError:
            default = ""
        return list(rows), default
    finally:
        await registry.close()


async def look_at(registry: Registry, entry: Entry) -> Row:
    problem = ""
    try:
        async with asyncio.timeout(PATIENCE):
            await registry.ask(entry)
    except ApiError as error:
        problem = str(error)
    except TimeoutError:
        problem = f"did not answer within {PATIENCE:g} s"
    settings = entry.settings
    note = what_it_is() if settings.kind == "local" else ""
    return Row(settings.name, settings.kind, settings.source, entry.names, problem, note)


def what_it_is() -> str:
    from crabtalk.model.local import DESCRIPTION

    return DESCRIPTION


def as_text(rows: list[Row], default: str) -> str:
    if not rows:
        return WAYS_ON
    lines = []
    for row in rows:
        count = f"{len(row.models)} model{'' if len(row.models) == 1 else 's'}"
        state = f"not usable: {row.problem}" if row.problem else count
        lines.append(f"{row.name} ({row.kind}, {row.source}): {state}")
        if row.note:
            lines.append(f"    {row.note}")
        lines += [f"  {'*' if name == default else ' '} {name}" for name in row.models[:SHOWN]]
        if len(row.models) > SHOWN:
            lines.append(f"    and {len(row.models) - SHOWN} more; --json lists all")
    lines.append(f"\n* answers when no model is named: {default}" if default else "\nnone answers")
    return "\n".join(lines)


def as_json(rows: list[Row], default: str) -> dict[str, Any]:
    return {
        "default": default,
        "providers": [
            {
                "name": row.name,
                "kind": row.kind,
                "source": row.source,
                "usable": not row.problem,
                "problem": row.problem,
                "models": row.models,
                "note": row.note,
            }
            for row in rows
        ],
    }
