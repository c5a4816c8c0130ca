"""What `crabtalkd run` does: a daemon in its home, from its configuration to its last line in the
log. How it serves is the process's business."""

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
    """Until Ctrl+C or SIGTERM. Raises HomeError, ConfigError and StartError."""
    place = Home(root)
    config = load_config(place.config, tcp=tcp)
    with (
        place,
        start_logging(
            directory=place.path / "logs",
            form=log_format,
            level=logging.DEBUG if verbose else logging.INFO,
            # A service manager may have pointed it at that file, for what a crash prints.
            stderr=None if is_stderr(place.path / "logs" / LOG_FILE_NAME) else sys.stderr,
        ) as logs,
    ):
        for sentence in describe_unknown_keys(config.unknown_keys, place.config):
            log.warning("%s", sentence)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve_home(place, config, logs))


async def serve_home(place: Home, config: Config, logs: LogHandler) -> None:
    """The daemon in its home, until it is told to stop."""
    logs.add_secrets(config.storage.secrets)
    storage, fleet = open_storage(place.path, config)
    daemon = Daemon(
        place.path,
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
    await serve(place, config, DaemonServer(daemon), finish_start, daemon)


def finish_start(sentence: str) -> None:
    log.info(sentence)
    # Before the first command or MCP server is started: our environment holds provider keys.
    hide_environment()
    # Garbage is looked for from now on, though never among what was there before.
    gc.freeze()
    gc.enable()
