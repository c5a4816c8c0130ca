"""Checking: config.toml read as a start reads it, with nothing started."""

from pathlib import Path

from crabtalk.model import SettingsError, read_settings

from .config import ignored, load_config
from .config_file import ConfigError
from .process import load_tls


def checked(path: Path) -> tuple[str, list[str]]:
    """Why no daemon could use it, empty when one can; and a sentence for each word in it that
    nobody reads."""
    try:
        config = load_config(path)
        load_tls(config)
        read_settings(config.document)
    except (ConfigError, SettingsError) as error:
        sentence = str(error)
        return sentence if str(path) in sentence else f"{path}: {sentence}", []
    return "", ignored(config.unknown, path)
