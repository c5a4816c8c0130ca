"""Service: the name and description of a component. The name is also used for its port file, its
log and its unit.

An `McpService` also has tools. How a service is kept running is in `unit`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .component_name import check_component_name

if TYPE_CHECKING:
    from mcp.server import MCPServer


@dataclass(frozen=True, slots=True)
class Service:
    """A program that runs beside the daemon. The default `label` is `ai.crabtalk.<name>`."""

    name: str
    description: str
    label: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        check_component_name(self.name)
        if not self.label:
            object.__setattr__(self, "label", f"ai.crabtalk.{self.name}")


@dataclass(frozen=True, slots=True)
class McpService(Service):
    """A service with tools.

    `server` makes the MCP server when the service runs: code that only needs the name must not pay
    for the SDK, which takes half a second to load.
    """

    server: "Callable[[], MCPServer[Any]]"

    def run(self, home: Path | None = None, *, verbose: bool = False) -> None:
        """Serves until Ctrl+C or SIGTERM. See `run_mcp`."""
        from .mcp_runner import run_mcp

        run_mcp(self.server, name=self.name, home=home, verbose=verbose)
