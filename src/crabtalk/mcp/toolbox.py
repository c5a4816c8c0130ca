"""Toolbox: what the tools of an agent's servers are called, and whose they are.

Names are those of the servers where vendors take them and nobody else has them: tools of our own
come first, then servers in the order of their declaration. `server__tool` always means that tool.
"""

import hashlib
import re
from collections.abc import Collection, Iterable
from functools import lru_cache

import msgspec

from .messages import McpTool
from .peers import Peer

# What every vendor takes for the name of a tool.
LONGEST_NAME = 64
INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
NAME_SEPARATOR = "__"


class ServerTool(msgspec.Struct, frozen=True):
    """A tool of an agent's. `name` is what it is offered as; empty when it is not."""

    name: str
    server: str
    peer: str
    tool: McpTool

    @property
    def full_name(self) -> str:
        """Which no other tool of the agent's has; the first of its names."""
        return convert_to_vendor_name(f"{self.server}{NAME_SEPARATOR}{self.tool.name}")

    @property
    def names(self) -> tuple[str, ...]:
        """All that a file may call it."""
        plain, full = self.tool.name, f"{self.server}{NAME_SEPARATOR}{self.tool.name}"
        all_ = (self.full_name, self.name, plain, full, f"mcp:{plain}", f"mcp:{full}")
        return tuple(dict.fromkeys(name for name in all_ if name))


class Toolbox:
    """Of one agent, as its servers are now.

    `taken` are names of tools that are no server's. `wanted`, unless empty, is all the agent may
    call: a tool is offered by the name that is in it.
    """

    def __init__(
        self,
        serving: Iterable[tuple[str, Peer]],
        taken: Collection[str],
        wanted: Collection[str] = (),
    ) -> None:
        self._by_name: dict[str, ServerTool] = {}
        self.offered: list[ServerTool] = []
        hidden: list[ServerTool] = []
        used = set(taken)
        for server, peer in serving:
            for tool in peer.tools:
                if not peer.is_offered:
                    hidden.append(ServerTool("", server, peer.id, tool))
                    continue
                known = ServerTool(
                    choose_tool_name(server, tool, used, wanted), server, peer.id, tool
                )
                if known.name:
                    used.add(known.name)
                    self._by_name.setdefault(known.name, known)
                self.offered.append(known)
        for known in [*self.offered, *hidden]:
            for name in (known.full_name, f"{known.server}{NAME_SEPARATOR}{known.tool.name}"):
                if name not in taken:
                    self._by_name.setdefault(name, known)
        for known in [*self.offered, *hidden]:
            # One that is not there now is still found, to say why it cannot be called.
            if known.tool.name not in taken:
                self._by_name.setdefault(known.tool.name, known)

    def find(self, name: str) -> ServerTool | None:
        return self._by_name.get(name)


def choose_tool_name(
    server: str, tool: McpTool, used: Collection[str], wanted: Collection[str] = ()
) -> str:
    """What a tool is offered as; empty when the agent may not call it."""
    plain = convert_to_vendor_name(tool.name)
    full = convert_to_vendor_name(f"{server}{NAME_SEPARATOR}{tool.name}")
    candidates = [plain, full, convert_to_vendor_name(full + NAME_SEPARATOR, always=True)]
    if wanted:
        asked = {plain: tool.name, full: f"{server}{NAME_SEPARATOR}{tool.name}"}
        candidates = [name for name, raw in asked.items() if name in wanted or raw in wanted]
    return next((name for name in candidates if name not in used), "")


@lru_cache(maxsize=4096)
def convert_to_vendor_name(name: str, *, always: bool = False) -> str:
    """`name` as vendors take it. What had to be changed gets a few digits, so that two of them
    stay two."""
    made = INVALID_CHARACTER.sub("_", name)[:LONGEST_NAME]
    if made == name and not always:
        return made
    digits = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{made[: LONGEST_NAME - 9]}_{digits}"
