"""The engines, one module each."""

from .bing import Bing
from .brave import Brave
from .brave_api import BraveApi
from .ddgs import Ddgs
from .duck_duck_go import DuckDuckGo
from .engine import Engine
from .mojeek import Mojeek
from .searxng import Searxng
from .tavily import Tavily
from .wikipedia import Wikipedia

__all__ = [
    "Bing",
    "Brave",
    "BraveApi",
    "Ddgs",
    "DuckDuckGo",
    "Engine",
    "Mojeek",
    "Searxng",
    "Tavily",
    "Wikipedia",
]
