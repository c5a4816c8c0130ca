"""Hooks: the tools agents can call. Each hook owns the schemas of its tools and their code."""

from .ask_registry import AskRegistry
from .bash import BashHook
from .composite_hook import CompositeHook
from .delegate import DelegateHook, DelegateLimits
from .files import FilesHook
from .mcp import McpHook
from .memory import MemoryHook
from .memory_access import MemoryAccess
from .memory_pool import MemoryPool
from .paths import read_roots
from .sessions import SessionsHook
from .skill import SkillHook
from .title import TitleHook
from .tool import AgentTool, ToolHook

__all__ = [
    "AgentTool",
    "AskRegistry",
    "BashHook",
    "CompositeHook",
    "DelegateHook",
    "DelegateLimits",
    "FilesHook",
    "McpHook",
    "MemoryAccess",
    "MemoryHook",
    "MemoryPool",
    "SessionsHook",
    "SkillHook",
    "TitleHook",
    "ToolHook",
    "read_roots",
]
