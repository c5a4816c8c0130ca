"""`crabtalkd models`: lists the providers, whether they can be used, and their models."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crabtalk.model import SETUP_HELP, ApiError, RegisteredProvider, Registry, open_registry

# Providers are asked concurrently; a slower one is reported as not answering.
PROVIDER_TIMEOUT_SECONDS = 10.0
MAX_MODELS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class ProviderRow:
    name: str
    kind: str
    source: str
    models: list[str]
    problem: str
    note: str = ""


async def list_providers(
    document: dict[str, Any], models_directory: Path
) -> tuple[list[ProviderRow], str]:
    """All providers, and the default model (empty if there is none)."""
    registry = await open_registry(document, models_directory=models_directory)
    try:
        rows = await asyncio.gather(
            *(query_provider(registry, entry) for entry in registry.entries)
        )
        try:
            default = await registry.default_model()
        except ApiError:
            default = ""
        return list(rows), default
    finally:
        await registry.close()


async def query_provider(registry: Registry, entry: RegisteredProvider) -> ProviderRow:
    problem = ""
    try:
        async with asyncio.timeout(PROVIDER_TIMEOUT_SECONDS):
            await registry.refresh_models(entry)
    except ApiError as error:
        problem = str(error)
    except TimeoutError:
        problem = f"did not answer within {PROVIDER_TIMEOUT_SECONDS:g} s"
    settings = entry.settings
    note = describe_local_model() if settings.kind == "local" else ""
    return ProviderRow(
        settings.name, settings.kind, settings.source, entry.model_names, problem, note
    )


def describe_local_model() -> str:
    from crabtalk.model.local.provider import DESCRIPTION

    return DESCRIPTION


def format_providers(rows: list[ProviderRow], default: str) -> str:
    if not rows:
        return SETUP_HELP
    lines = []
    for row in rows:
        count = f"{len(row.models)} model{'' if len(row.models) == 1 else 's'}"
        state = f"not usable: {row.problem}" if row.problem else count
        lines.append(f"{row.name} ({row.kind}, {row.source}): {state}")
        if row.note:
            lines.append(f"    {row.note}")
        lines += [
            f"  {'*' if name == default else ' '} {name}" for name in row.models[:MAX_MODELS_SHOWN]
        ]
        if len(row.models) > MAX_MODELS_SHOWN:
            lines.append(f"    and {len(row.models) - MAX_MODELS_SHOWN} more; --json lists all")
    lines.append(f"\n* answers when no model is named: {default}" if default else "\nnone answers")
    return "\n".join(lines)


def to_json_document(rows: list[ProviderRow], default: str) -> dict[str, Any]:
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
