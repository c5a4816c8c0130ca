"""What agents can do. Each hook owns its tools: what the model may say, and the code behind it."""

from .asks import Asks
from .composite import Composite
from .delegate import DelegateHook, DelegateLimits
from .skill import SkillHook
from .title import TitleHook
from .tool import Tool, ToolHook

__all__ = [
    "Asks",
    "Composite",
    "DelegateHook",
    "DelegateLimits",
    "SkillHook",
    "TitleHook",
    "Tool",
    "ToolHook",
]
