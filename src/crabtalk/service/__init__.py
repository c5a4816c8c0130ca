"""What a component needs: a program beside the daemon that offers tools and crashes alone.

server = MCPServer("dice")

@server.tool()
def roll(sides: int = 6) -> int: ...

run_mcp(server)
"""

from typing import TYPE_CHECKING

from crabtalk.lazy_imports import load_lazily

if TYPE_CHECKING:
    from .component_paths import ComponentPaths
    from .errors import ComponentError, UnitError
    from .journal import RecordJournal
    from .log import start_log
    from .mcp_runner import run_mcp, serve_mcp
    from .port_file import PortFile, list_port_files
    from .service import McpService, Service
    from .service_managers import get_service_manager, read_last_lines, run_command, stop_component
    from .unit import CommandRunner, ServiceManager, Unit, UnitStatus

__all__ = [
    "CommandRunner",
    "ComponentError",
    "ComponentPaths",
    "McpService",
    "PortFile",
    "RecordJournal",
    "Service",
    "ServiceManager",
    "Unit",
    "UnitError",
    "UnitStatus",
    "get_service_manager",
    "list_port_files",
    "read_last_lines",
    "run_command",
    "run_mcp",
    "serve_mcp",
    "start_log",
    "stop_component",
]

# Where each is. Imported on first use: a command line needs none of it to print its help.
__getattr__ = load_lazily(
    __name__,
    {
        "errors": ("ComponentError", "UnitError"),
        "journal": ("RecordJournal",),
        "log": ("start_log",),
        "service_managers": (
            "read_last_lines",
            "get_service_manager",
            "run_command",
            "stop_component",
        ),
        "component_paths": ("ComponentPaths",),
        "port_file": ("PortFile", "list_port_files"),
        "mcp_runner": ("run_mcp", "serve_mcp"),
        "service": ("McpService", "Service"),
        "unit": ("ServiceManager", "CommandRunner", "UnitStatus", "Unit"),
    },
)
