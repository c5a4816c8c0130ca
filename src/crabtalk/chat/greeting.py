"""The greeting: for whoever has said nothing yet. Three lines, and never again."""

from pathlib import Path

from .session import REQUEST_ERRORS, ChatSession


async def build_greeting(session: ChatSession, home: Path) -> list[str]:
    """Which model answers and why, how to have another one, how to leave."""
    return [
        await describe_model(session, home),
        "For another one: `crabtalkd setup`, or a key in the environment.",
        "Ctrl+D leaves, and everything is kept; /help shows the rest.",
    ]


async def describe_model(session: ChatSession, home: Path) -> str:
    """By what the status line shows. On a first start that is known only after the daemon has
    looked around, and it waits for that."""
    try:
        await session.refresh_catalogue()
        if not (name := session.model):
            return "No model is set up yet, so nobody can answer."
        own = (await session.client.get_agent(session.agent)).model
    except REQUEST_ERRORS:
        return "Which model answers is not known yet; /model asks again."
    why = f"{session.agent}'s file names it" if own else explain_model_choice(home)
    return f"{session.agent} answers with {name}: {why}."


def explain_model_choice(home: Path) -> str:
    """As far as a client can tell: what is found on a machine is the daemon's to look for."""
    import tomllib  # late: it greets nobody twice

    try:
        with (home / "config.toml").open("rb") as file:
            config = tomllib.load(file)
    except (OSError, ValueError):
        config = {}
    if any(key in config for key in ("llm", "providers")) or config.get("daemon", {}).get("model"):
        return "config.toml says so"
    return "it is the first that was found here"
