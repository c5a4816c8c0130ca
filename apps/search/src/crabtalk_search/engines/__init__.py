"""The engines, one module each."""

from .bing import BingEngine
from .brave import BraveEngine
from .brave_api import BraveApiEngine
from .ddgs import DdgsEngine
from .duck_duck_go import DuckDuckGoEngine
from .engine import SearchEngine
from .mojeek import MojeekEngine
from .searxng import SearxngEngine
from .tavily import TavilyEngine
from .wikipedia import WikipediaEngine

__all__ = [
    "BingEngine",
    "BraveApiEngine",
    "BraveEngine",
    "DdgsEngine",
    "DuckDuckGoEngine",
    "MojeekEngine",
    "SearchEngine",
    "SearxngEngine",
    "TavilyEngine",
    "WikipediaEngine",
]
