"""The file config.toml as it stands: read or refused. What its words mean is config.py's.

Commands that only want to know what it says need none of the rooms whose bounds it may set.
"""

from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """config.toml, or an option that overrides it, cannot be used; says where and what to write."""


def read_config_file(path: Path) -> dict[str, Any]:
    """All of it; of a file that is not there, nothing."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; make it readable") from None
    import tomllib  # a start without a file does not pay for it

    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; mend it or move it away") from None
