"""The metadata of sessions and machines. It is sealed before it is sent."""

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crabtalk_web import __version__

from .credentials import RelayCredentials
from .errors import WebGatewayError
from .relay_http import MAX_FILE_BYTES

# Models and skills that are listed.
MAX_LISTED = 200

# What devices show for each mode.
MODES = {
    "plan": "Reads only. Nothing is changed, and no other command runs.",
    "ask": "Reads and harmless commands run. Edits and other commands ask you first.",
    "accept-edits": "Reads and file edits run. Other commands ask you first.",
    "auto": "Everything that the agent's file allows runs without asking.",
}


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """The parts of the daemon's state that devices show."""

    models: tuple[str, ...] = ()
    active_model: str = ""
    skills: tuple[str, ...] = ()


def build_session_metadata(
    agent: str,
    title: str,
    credentials: RelayCredentials,
    directory: Path,
    daemon_info: DaemonInfo,
    methods: Sequence[str],
) -> dict[str, Any]:
    """`flavor` is left out on purpose, because apps then let people attach files."""
    metadata: dict[str, Any] = {
        "path": str(directory),
        "host": socket.gethostname(),
        "name": agent,
        "version": __version__,
        "os": platform.system().lower(),
        "homeDir": str(Path.home()),
        "machineId": credentials.machine_id,
        "startedBy": "daemon",
        "startedFromDaemon": True,
        "hostPid": os.getpid(),
        "slashCommands": list(daemon_info.skills[:MAX_LISTED]),
        "models": [{"code": name, "value": name} for name in daemon_info.models[:MAX_LISTED]],
        "currentModelCode": daemon_info.active_model,
        **build_capabilities(methods),
    }
    if title:
        metadata["summary"] = {"text": title, "updatedAt": 0}
    return metadata


def build_capabilities(methods: Sequence[str]) -> dict[str, Any]:
    """Apps that read this hide shells and folders, which this gateway does not offer."""
    return {
        "client": {"id": "rig", "name": "crabtalk", "version": __version__},
        "rigMetadataVersion": 1,
        "capabilities": {
            "abort": True,
            "steering": True,
            "shell": False,
            "modelSelection": False,
            "files": {"read": False, "write": False, "list": False},
            "attachments": {
                "enabled": True,
                "maxBytes": MAX_FILE_BYTES - 40,
                "mediaTypes": ["*/*"],
            },
            "rpcMethods": list(methods),
        },
    }


def merge_metadata(current: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Keep the values of others, replace ours, and keep the time of an unchanged title."""
    metadata = {**current, **new}
    old_summary, new_summary = current.get("summary"), new.get("summary")
    if (
        isinstance(old_summary, dict)
        and isinstance(new_summary, dict)
        and old_summary.get("text") == new_summary.get("text")
    ):
        metadata["summary"] = old_summary
    return metadata


def build_machine_metadata(directory: Path) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "platform": platform.system().lower(),
        "happyCliVersion": f"crabtalk-web/{__version__}",
        "homeDir": str(Path.home()),
        "happyHomeDir": str(directory),
        "displayName": f"crabtalk on {socket.gethostname()}",
        "machineKind": "crabtalk",
    }


def build_machine_state(started_at: int) -> dict[str, Any]:
    return {"status": "running", "pid": os.getpid(), "startedAt": started_at}


def build_mode_metadata(mode: str, *, is_set: bool) -> dict[str, Any]:
    """Empty if the mode is unknown, so that devices offer no choice that would fail."""
    if not mode:
        return {}
    return {
        "operatingModes": [
            {"code": code, "value": code, "description": sentence}
            for code, sentence in MODES.items()
        ],
        "currentOperatingModeCode": mode,
        "operatingModeIsSet": is_set,
    }


def check_mode(mode: object) -> str:
    """Raises WebGatewayError for an unknown mode. Empty is valid: it restores the agent's own
    mode."""
    if not isinstance(mode, str) or (mode and mode not in MODES):
        raise WebGatewayError(f"there is no such mode; there are {', '.join(MODES)}")
    return mode
