"""Corrupt configuration files of all kinds: each is used, or refused in a sentence."""

import random
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from crabtalk.daemon.config.config_file import ConfigError
from crabtalk.daemon.config.settings import parse_config
from crabtalk.daemon.events.subscription_file import parse_subscriptions
from crabtalk.hooks.skill_files import parse_skill
from crabtalk.hooks.skill_front_matter import SkillError
from crabtalk.model import ProviderSettingsError
from crabtalk.model.provider_settings import read_provider_settings
from crabtalk.storage import AgentError, parse_agent
from crabtalk_cron.crons_file import parse_crons_file
from tests.hostile.corruption import corrupt_lines
from tests.hostile.test_homes import AGENT, SKILL, SUBSCRIPTIONS

COUNT = 1500
CONFIG = """
[llm]
base_url = "http://127.0.0.1:9/v1"
model = "m"
[[providers]]
name = "p"
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "k"
models = ["m"]
timeout = 3.0
[daemon]
model = "m"
tcp = "off"
[storage]
durability = "os"
[env]
A = "b"
[limits]
runs = 7
"""
CRONS = """timezone = "UTC"
[[cron]]
id = 1
schedule = "0 */2 * * * *"
skill = "check-feeds"
agent = "crab"
sender = "cron"
quiet_start = "23:00"
quiet_end = "07:00"
once = false
[[cron]]
id = 2
schedule = "@daily"
message = "hello"
agent = "owl"
"""


def read_config(data: bytes) -> None:
    document = tomllib.loads(data.decode())
    parse_config(document, Path("config.toml"))
    read_provider_settings(document)


def read_crons(data: bytes) -> None:
    crons = parse_crons_file(data.decode())
    if crons.mistakes:
        raise ConfigError("; ".join(str(mistake.text)[:200] for mistake in crons.mistakes[:3]))


READERS: dict[str, tuple[str, Callable[[bytes], object]]] = {
    "config": (CONFIG, read_config),
    "agent": (AGENT, lambda data: parse_agent("odd", tomllib.loads(data.decode()))),
    "subscriptions": (SUBSCRIPTIONS, lambda data: parse_subscriptions(data.decode())),
    "skill": (SKILL, parse_skill),
    "crons": (CRONS, read_crons),
}
# The errors of the readers; ValueError for invalid TOML, which the caller reports.
REFUSALS = (ConfigError, ProviderSettingsError, AgentError, SkillError, ValueError)


@pytest.mark.parametrize("kind", READERS)
def test_any_text_is_used_or_refused_in_a_sentence(kind: str) -> None:
    text, read = READERS[kind]
    rng = random.Random(kind)
    used = refused = 0
    for number in range(COUNT):
        data = corrupt_lines(rng, text)
        try:
            read(data)
        except REFUSALS as error:
            sentence = str(error)
        except RecursionError:
            sentence = "nested too deeply"
        except Exception as error:
            raise AssertionError(f"number {number}: {error!r} of {data!r}") from error
        else:
            used += 1
            continue
        refused += 1
        assert 3 < len(sentence) < 1500, (number, data, sentence)
    assert used > COUNT / 50
    assert refused > COUNT / 50
