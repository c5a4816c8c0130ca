"""The greeting: for whoever has said nothing yet. Three lines, and never again."""

import tomllib
from pathlib import Path

from .session import FAILURES, Session


async def greeting(session: Session, home: Path) -> list[str]:
    """Which model answers and why, how to have a better one, how to leave."""
    name, why = "", ""
    try:
        agent = await session.client.get_agent(session.agent)
        if agent.model:
            name, why = agent.model, f"{session.agent}'s file names it"
        else:
            name = (await session.client.get_stats()).active_model
            why = reason(home)
    except FAILURES:
        pass
    answers = (
        f"{session.agent} answers with {name}: {why}."
        if name
        else "No model is set up yet, so nobody can answer."
    )
    return [
        answers,
        "For a better one: `crabtalkd setup`, or a key in the environment.",
        "Ctrl+D leaves, and everything is kept; /help shows the rest.",
    ]


def reason(home: Path) -> str:
    """As far as a client can tell: what is found on a machine is the daemon's to look for."""
    try:
        with (home / "config.toml").open("rb") as file:
            config = tomllib.load(file)
    except (OSError, ValueError):
        config = {}
    if any(key in config for key in ("llm", "providers")) or config.get("daemon", {}).get("model"):
        return "config.toml says so"
    return "it is the first that was found here"
