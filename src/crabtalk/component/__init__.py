"""What a component needs: a program beside the daemon that offers tools and crashes alone.

server = MCPServer("dice")

@server.tool()
def roll(sides: int = 6) -> int: ...

run_mcp(server)
"""

from typing import TYPE_CHECKING

from crabtalk.late import late

if TYPE_CHECKING:
    from .errors import ComponentError, UnitError
    from .journal import Journal
    from .log import start_log
    from .managers import last_lines, manager_here, run_command, stop_component
    from .place import Place
    from .port_file import PortFile, port_files
    from .running import run_mcp, serve_mcp
    from .service import McpService, Service
    from .unit import Manager, Runner, Status, Unit

__all__ = [
    "ComponentError",
    "Journal",
    "Manager",
    "McpService",
    "Place",
    "PortFile",
    "Runner",
    "Service",
    "Status",
    "Unit",
    "UnitError",
    "last_lines",
    "manager_here",
    "port_files",
    "run_command",
    "run_mcp",
    "serve_mcp",
    "start_log",
    "stop_component",
]

# Where each is. Imported on first use: a command line needs none of it to print its help.
__getattr__ = late(
    __name__,
    {
        "errors": ("ComponentError", "UnitError"),
        "journal": ("Journal",),
        "log": ("start_log",),
        "managers": ("last_lines", "manager_here", "run_command", "stop_component"),
        "place": ("Place",),
        "port_file": ("PortFile", "port_files"),
        "running": ("run_mcp", "serve_mcp"),
        "service": ("McpService", "Service"),
        "unit": ("Manager", "Runner", "Status", "Unit"),
    },
)
