"""The process: home, configuration, doors, life and death, and the Server behind them."""

from .config import Config, ConfigError, load_config
from .home import Home, HomeError
from .process import StartError, serve
from .server import DaemonServer

__all__ = [
    "Config",
    "ConfigError",
    "DaemonServer",
    "Home",
    "HomeError",
    "StartError",
    "load_config",
    "serve",
]
