"""Checking: config.toml read as a start reads it, with nothing started."""

from pathlib import Path

from crabtalk.daemon.process.main_loop import load_tls
from crabtalk.model import ProviderSettingsError, read_provider_settings

from .config_file import ConfigError
from .settings import describe_unknown_keys, load_config


def check_config_file(path: Path) -> tuple[str, list[str]]:
    """Why no daemon could use it, empty when one can; and a sentence for each word in it that
    nobody reads."""
    try:
        config = load_config(path)
        load_tls(config)
        read_provider_settings(config.document)
    except (ConfigError, ProviderSettingsError) as error:
        sentence = str(error)
        return sentence if str(path) in sentence else f"{path}: {sentence}", []
    return "", describe_unknown_keys(config.unknown_keys, path)
