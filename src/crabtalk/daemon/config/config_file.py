"""Reads config.toml as a plain document. settings.py interprets its keys.

Separate from settings.py, so that commands that only read the file import no other packages.
"""

from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """config.toml or an option that overrides it is invalid; says where, and what to write."""


def read_config_file(path: Path) -> dict[str, Any]:
    """The whole document; empty if there is no file. Raises ConfigError."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; make it readable") from None
    import tomllib  # late: not needed without a file

    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; mend it or move it away") from None
