"""`crabtalkd check`: reads config.toml as a start does, but starts nothing."""

from pathlib import Path

from crabtalk.daemon.process.main_loop import load_tls
from crabtalk.model import ProviderSettingsError, read_provider_settings

from .config_file import ConfigError
from .settings import describe_unknown_keys, load_config


def check_config_file(path: Path) -> tuple[str, list[str]]:
    """Why a daemon cannot use the file (empty if it can), and a sentence for each unknown key."""
    try:
        config = load_config(path)
        load_tls(config)
        read_provider_settings(config.document)
    except (ConfigError, ProviderSettingsError) as error:
        sentence = str(error)
        return sentence if str(path) in sentence else f"{path}: {sentence}", []
    return "", describe_unknown_keys(config.unknown_keys, path)
