"""Toolbox: assigns names to the tools of an agent's servers, and finds tools by name.

A tool keeps its name if vendors accept it and no earlier tool has it: built-in tools come first,
then servers in the order of their declaration. `server__tool` always means that tool.
"""

import hashlib
import re
from collections.abc import Collection, Iterable
from functools import lru_cache

import msgspec

from .messages import McpTool
from .peers import Peer

# Every vendor accepts tool names of this length, without these characters.
LONGEST_NAME = 64
INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
NAME_SEPARATOR = "__"


class ServerTool(msgspec.Struct, frozen=True):
    """A server's tool for one agent. `name` is the offered name; empty if it is not offered."""

    name: str
    server: str
    peer: str
    tool: McpTool

    @property
    def full_name(self) -> str:
        """The name that no other tool of the agent has."""
        return convert_to_vendor_name(f"{self.server}{NAME_SEPARATOR}{self.tool.name}")

    @property
    def names(self) -> tuple[str, ...]:
        """All names that an agent's file may use for it, `full_name` first."""
        plain, full = self.tool.name, f"{self.server}{NAME_SEPARATOR}{self.tool.name}"
        names = (self.full_name, self.name, plain, full, f"mcp:{plain}", f"mcp:{full}")
        return tuple(dict.fromkeys(name for name in names if name))


class Toolbox:
    """The tools of one agent's servers in their current state.

    `taken` are the names of tools that do not come from a server. `wanted` are the names the agent
    may call, if not empty: a tool is then offered under the name listed there.
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
            # Tools of lost servers are found too, so that a call can report why it fails.
            if known.tool.name not in taken:
                self._by_name.setdefault(known.tool.name, known)

    def find(self, name: str) -> ServerTool | None:
        return self._by_name.get(name)


def choose_tool_name(
    server: str, tool: McpTool, used: Collection[str], wanted: Collection[str] = ()
) -> str:
    """Return the name a tool is offered under; empty if the agent may not call it."""
    plain = convert_to_vendor_name(tool.name)
    full = convert_to_vendor_name(f"{server}{NAME_SEPARATOR}{tool.name}")
    candidates = [plain, full, convert_to_vendor_name(full + NAME_SEPARATOR, always=True)]
    if wanted:
        raw_names = {plain: tool.name, full: f"{server}{NAME_SEPARATOR}{tool.name}"}
        candidates = [name for name, raw in raw_names.items() if name in wanted or raw in wanted]
    return next((name for name in candidates if name not in used), "")


@lru_cache(maxsize=4096)
def convert_to_vendor_name(name: str, *, always: bool = False) -> str:
    """Convert `name` to one that vendors accept. A changed name gets a hash suffix, so that two
    different names stay different."""
    converted = INVALID_CHARACTER.sub("_", name)[:LONGEST_NAME]
    if converted == name and not always:
        return converted
    digits = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{converted[: LONGEST_NAME - 9]}_{digits}"
