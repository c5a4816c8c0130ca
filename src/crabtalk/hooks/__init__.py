"""What agents can do. Each hook owns its tools: what the model may say, and the code behind it."""

from .asks import Asks
from .bash import BashHook
from .composite import Composite
from .delegate import DelegateHook, DelegateLimits
from .files import FilesHook
from .mcp import McpHook
from .memories import Memories
from .memory import MemoryHook
from .memory_access import MemoryAccess
from .paths import read_roots
from .sessions import SessionsHook
from .skill import SkillHook
from .title import TitleHook
from .tool import Tool, ToolHook

__all__ = [
    "Asks",
    "BashHook",
    "Composite",
    "DelegateHook",
    "DelegateLimits",
    "FilesHook",
    "McpHook",
    "Memories",
    "MemoryAccess",
    "MemoryHook",
    "SessionsHook",
    "SkillHook",
    "TitleHook",
    "Tool",
    "ToolHook",
    "read_roots",
]
