"""Limits for peers, so that no server blocks an agent or fills the memory."""

from dataclasses import dataclass

from crabtalk.runtime import require_positive_integers


@dataclass(frozen=True, slots=True)
class McpLimits:
    # Peers at once; starting one more fails.
    mcp_peers: int = 256
    # Seconds for starting a server and listing its tools.
    mcp_connect_seconds: int = 30
    # Seconds for the answer to a call; each progress message restarts them.
    mcp_call_seconds: int = 120
    # Calls at once, of all agents together.
    mcp_calls: int = 1024
    # Seconds an agent's first turn waits for servers that are still connecting.
    mcp_wait_seconds: int = 3

    def __post_init__(self) -> None:
        require_positive_integers(self)
