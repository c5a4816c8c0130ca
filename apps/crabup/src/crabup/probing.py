"""Probing: what of a home answers, by trying it. Knows nothing of who keeps it alive."""

import http.client
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crabtalk.component import PortFile
from crabtalk.transport import RunFiles

DAEMON = "daemon"
# To loopback: who has not answered by then is stuck.
PATIENCE = 2.0
LARGEST = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found where a service says it listens."""

    state: Literal["running", "stale", "absent"]
    port: int | None = None
    pid: int | None = None


def probe(name: str, home: Path) -> Answer:
    return probe_daemon(home) if name == DAEMON else probe_component(PortFile.of(home, name))


def probe_daemon(home: Path) -> Answer:
    """By a ping, over whatever it listens on."""
    from crabtalk.client import ConnectionClosedError, ServerError, connect_sync

    files = RunFiles.of(home)
    port = None
    with suppress(OSError, ValueError):
        port = int(files.port.read_text())
    with (
        suppress(OSError, TimeoutError, ServerError, ConnectionClosedError),
        connect_sync(
            home=home, client="crabup", timeout=PATIENCE, connect_timeout=PATIENCE
        ) as client,
    ):
        client.ping()
        return Answer("running", port, files.holder())
    is_absent = port is None and not files.socket.exists()
    return Answer("absent") if is_absent else Answer("stale", port)


def probe_component(file: PortFile) -> Answer:
    """By a connection, and by its `/health` where it has one: the port may be anybody's by now."""
    if not file.path.exists():
        return Answer("absent")
    port = file.read()
    if port is None or not file.is_listening():
        return Answer("stale", port)
    health = ask_health(port)
    if health is None:
        return Answer("running", port)
    name, pid = health.get("name"), health.get("pid")
    if name != file.name:
        return Answer("stale", port)
    return Answer("running", port, pid if isinstance(pid, int) else None)


def ask_health(port: int) -> dict[str, object] | None:
    """None from a service that has none, or is no HTTP server at all."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        found = json.loads(response.read(LARGEST)) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    return found if isinstance(found, dict) else None
