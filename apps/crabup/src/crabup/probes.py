"""Probes which services of a home answer. It knows nothing of service managers."""

import http.client
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crabtalk.service import PortFile
from crabtalk.transport import RunFiles

DAEMON_NAME = "daemon"
# Seconds. On loopback, a service that has not answered by then hangs.
PROBE_TIMEOUT = 2.0
MAX_HEALTH_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe at the address a service has published."""

    state: Literal["running", "stale", "absent"]
    port: int | None = None
    pid: int | None = None


def probe_service(name: str, home: Path) -> ProbeResult:
    return (
        probe_daemon(home)
        if name == DAEMON_NAME
        else probe_component(PortFile.for_component(home, name))
    )


def probe_daemon(home: Path) -> ProbeResult:
    """Probe the daemon with a ping, over its socket or its port."""
    from crabtalk.client import ConnectionClosedError, ServerError, connect_sync

    files = RunFiles.for_home(home)
    port = None
    with suppress(OSError, ValueError):
        port = int(files.port_path.read_text())
    with (
        suppress(OSError, TimeoutError, ServerError, ConnectionClosedError),
        connect_sync(
            home=home, client="crabup", timeout=PROBE_TIMEOUT, connect_timeout=PROBE_TIMEOUT
        ) as client,
    ):
        client.ping()
        return ProbeResult("running", port, files.read_daemon_pid())
    is_absent = port is None and not files.socket_path.exists()
    return ProbeResult("absent") if is_absent else ProbeResult("stale", port)


def probe_component(file: PortFile) -> ProbeResult:
    """Probe by a connection and `/health`: another program may have the port by now."""
    if not file.path.exists():
        return ProbeResult("absent")
    port = file.read_port()
    if port is None or not file.is_listening():
        return ProbeResult("stale", port)
    health = fetch_health(port)
    if health is None:
        return ProbeResult("running", port)
    name, pid = health.get("name"), health.get("pid")
    if name != file.name:
        return ProbeResult("stale", port)
    return ProbeResult("running", port, pid if isinstance(pid, int) else None)


def fetch_health(port: int) -> dict[str, object] | None:
    """None if the service has no `/health`, or is no HTTP server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_TIMEOUT)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        health = json.loads(response.read(MAX_HEALTH_BYTES)) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    return health if isinstance(health, dict) else None
