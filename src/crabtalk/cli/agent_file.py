"""An agent's file in the daemon's home, as far as the wire does not tell what is in it: the prompt,
and secrets. Only read here; the daemon writes it.
"""

import tomllib
from pathlib import Path
from typing import Any

from .errors import CommandError


def get_agent_path(home: Path | None, name: str) -> Path:
    """Of an agent the daemon knows: what is no name must not become a path."""
    from crabtalk.transport import default_home

    return (home if home is not None else default_home()) / "agents" / f"{name}.toml"


def read_agent_file(home: Path | None, name: str) -> dict[str, Any]:
    """All of it."""
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
    """None where it cannot be read; the daemon has one all the same."""
    try:
        prompt = read_agent_file(home, name).get("prompt")
    except (CommandError, OSError):
        return None
    return prompt if isinstance(prompt, str) else None
