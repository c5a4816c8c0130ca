"""MCP servers that agents declare. Equal declarations share one peer.

The peers run in a separate host process. Only that process imports the MCP SDK (crabtalk.mcp.host).
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
