"""`crabtalkd run`: reads the configuration, starts logging, and builds the daemon for its home.

The main loop is in main_loop.py.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from crabtalk.daemon.config.settings import Config, describe_unknown_keys, load_config
from crabtalk.daemon.daemon import Daemon
from crabtalk.daemon.handlers.daemon_server import DaemonServer
from crabtalk.environment import hide_environment
from crabtalk.service.log import is_stderr

from .home import Home
from .log_handler import LogHandler, start_logging
from .log_sinks import LOG_FILE_NAME
from .main_loop import serve
from .storage_factory import open_storage

log = logging.getLogger(__name__)


def run_in_home(
    root: Path,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    *,
    tcp: str | None,
    log_format: Literal["text", "json"],
    verbose: bool,
) -> None:
    """Run until Ctrl+C or SIGTERM. Raises HomeError, ConfigError and StartError."""
    home = Home(root)
    config = load_config(home.config, tcp=tcp)
    with (
        home,
        start_logging(
            directory=home.path / "logs",
            form=log_format,
            level=logging.DEBUG if verbose else logging.INFO,
            # A service manager may have redirected stderr to the log file, to catch crash messages.
            stderr=None if is_stderr(home.path / "logs" / LOG_FILE_NAME) else sys.stderr,
        ) as logs,
    ):
        for sentence in describe_unknown_keys(config.unknown_keys, home.config):
            log.warning("%s", sentence)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve_home(home, config, logs))


async def serve_home(home: Home, config: Config, logs: LogHandler) -> None:
    logs.add_secrets(config.storage.secrets)
    storage, fleet = open_storage(home.path, config)
    daemon = Daemon(
        home.path,
        storage,
        config.document,
        limits=config.runtime_limits,
        feed_limits=config.feed_limits,
        delegate_limits=config.delegate_limits,
        event_limits=config.event_limits,
        mcp_limits=config.mcp_limits,
        keep_secret=logs.add_secrets,
        fleet=fleet,
    )
    await serve(home, config, DaemonServer(daemon), finish_start, daemon)


def finish_start(sentence: str) -> None:
    log.info(sentence)
    # Before any command or MCP server starts, because our environment holds provider keys.
    hide_environment()
    # Collect garbage from now on, but never scan the objects that exist already.
    gc.freeze()
    gc.enable()
