"""Modes: how much an agent may do in a conversation without asking, and what devices are told."""

from typing import Any

from .errors import GatewayError

MODES = {
    "plan": "Reads only. Nothing is changed, and no other command runs.",
    "ask": "Reads and harmless commands run. Edits and other commands ask you first.",
    "accept-edits": "Reads and file edits run. Other commands ask you first.",
    "auto": "Everything that the agent's file allows runs without asking.",
}


def mode_metadata(mode: str, *, is_set: bool) -> dict[str, Any]:
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
        raise GatewayError(f"there is no such mode; there are {', '.join(MODES)}")
    return mode
