"""DaemonServer: what the daemon answers to each request."""

import time

from crabtalk import __version__
from crabtalk.protocol import PROTOCOL_VERSION, Server, wire


class DaemonServer(Server):
    """One per process. What it does not override answers 501."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(protocol_version=PROTOCOL_VERSION, server_version=__version__)

    async def get_stats(self, request: wire.GetStats) -> wire.DaemonStats:
        return wire.DaemonStats(uptime_secs=int(time.monotonic() - self._started))
