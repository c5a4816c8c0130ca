"""The first start of a daemon: runs the daemon's own `setup`, which asks for a model."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from crabtalk.service.command_line import print_to_stderr

from .errors import CrabupError

VARIABLE_PATTERN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def run_setup(crabtalkd: Path, home: Path, has_terminal: bool) -> None:
    """Run `crabtalkd setup`, if nothing is configured and there is a terminal to ask on."""
    if is_configured(home):
        return
    if not has_terminal:
        print_to_stderr("no model is configured; `crabtalkd setup` chooses one")
        return
    result = subprocess.run([crabtalkd, "setup", "--home", str(home)], check=False)
    if result.returncode != 0:
        raise CrabupError(
            "the daemon was not started, because its set-up did not end well; start it again"
        )


def is_configured(home: Path) -> bool:
    """A file that cannot be parsed counts as configured: the daemon says what is wrong with it."""
    document = load_configuration(home)
    return document is None or bool(document.get("llm") or document.get("providers"))


def list_missing_variables(home: Path) -> list[str]:
    """The environment variables that config.toml refers to."""
    document = load_configuration(home) or {}
    tables = repr([document.get("llm"), document.get("providers")])
    return sorted(set(VARIABLE_PATTERN.findall(tables)) - {"HOME", "USER", "PATH"})


def load_configuration(home: Path) -> dict[str, Any] | None:
    """Empty if there is no file, None if it is not valid TOML."""
    try:
        return tomllib.loads((home / "config.toml").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return None
