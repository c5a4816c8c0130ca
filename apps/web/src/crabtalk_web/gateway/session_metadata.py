"""Metadata: what a session and its machine say of themselves. Sealed before anybody gets it."""

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

# Models, and skills, that are told of.
MAX_LISTED = 200

# What devices are told of each mode.
MODES = {
    "plan": "Reads only. Nothing is changed, and no other command runs.",
    "ask": "Reads and harmless commands run. Edits and other commands ask you first.",
    "accept-edits": "Reads and file edits run. Other commands ask you first.",
    "auto": "Everything that the agent's file allows runs without asking.",
}


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What the daemon offers, as far as devices care."""

    models: tuple[str, ...] = ()
    active_model: str = ""
    skills: tuple[str, ...] = ()


def build_session_metadata(
    agent: str,
    title: str,
    credentials: RelayCredentials,
    directory: Path,
    surroundings: DaemonInfo,
    methods: Sequence[str],
) -> dict[str, Any]:
    """`flavor` is left out on purpose: apps then let people attach files."""
    told: dict[str, Any] = {
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
        "slashCommands": list(surroundings.skills[:MAX_LISTED]),
        "models": [{"code": name, "value": name} for name in surroundings.models[:MAX_LISTED]],
        "currentModelCode": surroundings.active_model,
        **build_capabilities(methods),
    }
    if title:
        told["summary"] = {"text": title, "updatedAt": 0}
    return told


def build_capabilities(methods: Sequence[str]) -> dict[str, Any]:
    """Apps that read this show what there is, and hide shells and folders, which there are not."""
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


def merge_metadata(there: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """What others put there stays; what is ours is as we say, and a title keeps its time."""
    told = {**there, **ours}
    old, new = there.get("summary"), ours.get("summary")
    if isinstance(old, dict) and isinstance(new, dict) and old.get("text") == new.get("text"):
        told["summary"] = old
    return told


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
    """Nothing where the mode is not known, so that devices offer no choice they cannot make."""
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
    """Raises GatewayError for what is no mode. Empty is one: back to the agent's own."""
    if not isinstance(mode, str) or (mode and mode not in MODES):
        raise WebGatewayError(f"there is no such mode; there are {', '.join(MODES)}")
    return mode
