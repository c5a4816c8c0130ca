"""Shell completion of names that the daemon knows.

The daemon must answer quickly; none is started for a completion.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from crabtalk.client import Client

# Seconds that a person who pressed Tab waits at most.
COMPLETION_TIMEOUT = 0.3


class CompletedName(click.ParamType[str]):
    """The name of something the daemon knows."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem[Any]]":
        from click.shell_completion import CompletionItem

        home = ctx.params.get("home") or ctx.find_root().params.get("home")
        names = query_names(self.load_names, home)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    async def load_names(self, client: "Client") -> list[str]:
        raise NotImplementedError


class AgentName(CompletedName):
    name = "name"

    async def load_names(self, client: "Client") -> list[str]:
        return [agent.name for agent in (await client.list_agents()).agents]


class ModelName(CompletedName):
    name = "name"

    async def load_names(self, client: "Client") -> list[str]:
        return [model.name for model in (await client.list_models()).models]


def query_names(load: "Callable[[Client], Awaitable[list[str]]]", home: Path | None) -> list[str]:
    """Ask the daemon for names; an empty list if none answers in time."""
    import asyncio

    from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError, connect

    async def run_request() -> list[str]:
        async with (
            asyncio.timeout(COMPLETION_TIMEOUT),
            connect(home=home, client="crabtalk") as client,
        ):
            return await load(client)

    try:
        return asyncio.run(run_request())
    except (OSError, ConnectionClosedError, ServerError, UnexpectedReplyError):
        return []
