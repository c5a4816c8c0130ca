"""The greeting of three lines in a conversation without messages."""

from pathlib import Path

from .session import REQUEST_ERRORS, ChatSession


async def build_greeting(session: ChatSession, home: Path) -> list[str]:
    """Say which model answers and why, how to choose another one, and how to leave."""
    return [
        await describe_model(session, home),
        "For another one: `crabtalkd setup`, or a key in the environment.",
        "Ctrl+D leaves, and everything is kept; /help shows the rest.",
    ]


async def describe_model(session: ChatSession, home: Path) -> str:
    """Say which model answers, as in the status line.

    On a first start this waits until the daemon has looked for models.
    """
    try:
        await session.refresh_catalogue()
        if not (name := session.model):
            return "No model is set up yet, so no agent can answer."
        own = (await session.client.get_agent(session.agent)).model
    except REQUEST_ERRORS:
        return "Which model answers is not known yet; /model asks again."
    reason = f"{session.agent}'s file names it" if own else explain_model_choice(home)
    return f"{session.agent} answers with {name}: {reason}."


def explain_model_choice(home: Path) -> str:
    """Explain the daemon's choice as far as a client can: only the daemon looks for models."""
    import tomllib  # late: most chats need no greeting

    try:
        with (home / "config.toml").open("rb") as file:
            config = tomllib.load(file)
    except (OSError, ValueError):
        config = {}
    if any(key in config for key in ("llm", "providers")) or config.get("daemon", {}).get("model"):
        return "config.toml says so"
    return "it is the first that was found here"
