"""Names: what a shell may complete, asked of the daemon if it is quick. None is started for it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from crabtalk.client import Client

# Whoever pressed Tab waits for no longer, in seconds.
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


def query_names(
    question: "Callable[[Client], Awaitable[list[str]]]", home: Path | None
) -> list[str]:
    """None of them where nobody answers in time."""
    import asyncio

    from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError, connect

    async def ask() -> list[str]:
        async with (
            asyncio.timeout(COMPLETION_TIMEOUT),
            connect(home=home, client="crabtalk") as client,
        ):
            return await question(client)

    try:
        return asyncio.run(ask())
    except (OSError, ConnectionClosedError, ServerError, UnexpectedReplyError):
        return []
