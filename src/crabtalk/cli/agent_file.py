"""Read an agent's TOML file in the daemon's home.

Commands need it for what the wire leaves out: the prompt and unmasked secrets. Only the daemon
writes the file.
"""

import tomllib
from pathlib import Path
from typing import Any

from .errors import CommandError


def get_agent_path(home: Path | None, name: str) -> Path:
    """Only for names the daemon knows as agents: other text must not become a path."""
    from crabtalk.transport import default_home

    return (home if home is not None else default_home()) / "agents" / f"{name}.toml"


def read_agent_file(home: Path | None, name: str) -> dict[str, Any]:
    path = get_agent_path(home, name)
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise CommandError(
            f"{name} has no file {path}; save it with `crabtalk agents edit {name}`"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{path} is not valid TOML: {error}; mend it") from None


def read_prompt(home: Path | None, name: str) -> str | None:
    """Return the agent's prompt, or None if the file cannot be read (the daemon has one anyway)."""
    try:
        prompt = read_agent_file(home, name).get("prompt")
    except (CommandError, OSError):
        return None
    return prompt if isinstance(prompt, str) else None
