"""MCP servers that agents declared: one peer per declaration, shared, in a process beside ours.

The SDK is imported by that process only (host.py and what begins with `host_`).
"""

from .limits import McpLimits
from .messages import McpCallResult, McpImage, McpProgress, McpTool
from .peers import Peer, PeerOwner, PeerStateChanged, PeerStatus
from .port_file_watcher import PortFileWatcher
from .server_manager import ALL_AGENTS, McpCallError, McpServerManager
from .toolbox import ServerTool, Toolbox

__all__ = [
    "ALL_AGENTS",
    "McpCallError",
    "McpCallResult",
    "McpImage",
    "McpLimits",
    "McpProgress",
    "McpServerManager",
    "McpTool",
    "Peer",
    "PeerOwner",
    "PeerStateChanged",
    "PeerStatus",
    "PortFileWatcher",
    "ServerTool",
    "Toolbox",
]
