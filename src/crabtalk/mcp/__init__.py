"""MCP servers that agents declared: one peer per declaration, shared, in a process beside ours.

The SDK is imported by that process only (host.py and what begins with `host_`).
"""

from .limits import McpLimits
from .messages import McpTool, Picture, Progress, Result
from .peers import Happened, Owner, Peer, Status
from .port_files import PortFiles
from .service import EVERYBODY, Mcp, McpCallError
from .toolbox import Known, Toolbox

__all__ = [
    "EVERYBODY",
    "Happened",
    "Known",
    "Mcp",
    "McpCallError",
    "McpLimits",
    "McpTool",
    "Owner",
    "Peer",
    "Picture",
    "PortFiles",
    "Progress",
    "Result",
    "Status",
    "Toolbox",
]
