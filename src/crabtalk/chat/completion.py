"""Candidates for completing the word before the cursor, from the catalogue and the file system.

It completes commands and skills after a leading `/`, agents after a leading `@`, a command's
argument after its name, and paths anywhere.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from crabtalk.cli.options import MODES
from crabtalk.protocol import wire

from .command_table import COMMANDS

MAX_CANDIDATES = 200  # people do not read longer menus
MAX_DIRECTORY_ENTRIES = 20_000  # entries read of one directory

# Takes the typed part of a path and returns full paths, directories with a slash at the end.
ListPaths = Callable[[str], Iterable[str]]


class NameEntry(NamedTuple):
    name: str
    about: str = ""
    model: str = ""  # an agent's own model
    limit: int = 0  # a model's context in tokens; 0 if not known


class NameCatalogue(NamedTuple):
    """Names of agents, skills and models, as the daemon last listed them."""

    agents: tuple[NameEntry, ...] = ()
    skills: tuple[NameEntry, ...] = ()
    models: tuple[NameEntry, ...] = ()
    active_model: str = ""

    def with_agents(self, agents: wire.AgentList, skills: wire.SkillList) -> "NameCatalogue":
        return self._replace(
            agents=tuple(NameEntry(a.name, a.description, a.model) for a in agents.agents),
            skills=tuple(NameEntry(s.name, f"skill, {s.source}") for s in skills.skills),
        )

    def with_models(self, models: wire.ModelList) -> "NameCatalogue":
        return self._replace(
            models=tuple(
                NameEntry(m.name, "active" if m.active else "", limit=m.context_limit)
                for m in models.models
            ),
            active_model=next((m.name for m in models.models if m.active), ""),
        )

    def has_agent(self, name: str) -> bool:
        return any(agent.name == name for agent in self.agents)

    def get_model(self, agent: str) -> str:
        """Return the agent's own model, else the active one."""
        own = next((entry.model for entry in self.agents if entry.name == agent), "")
        return own or self.active_model

    def get_context_limit(self, agent: str) -> int:
        """Return the context of the agent's model in tokens; 0 if not known."""
        model = self.get_model(agent)
        return next((entry.limit for entry in self.models if entry.name == model), 0)


class CompletionCandidate(NamedTuple):
    """`text` replaces the `length` characters before the cursor."""

    text: str
    length: int
    display: str
    meta: str = ""


def find_candidates(
    text: str, cursor: int, catalogue: NameCatalogue, paths: ListPaths | None = None
) -> list[CompletionCandidate]:
    """Return the candidates, best first, at most MAX_CANDIDATES."""
    before = text[:cursor]
    word = before[find_word_start(before) :]
    first, space, _ = before.partition(" ")
    if before == word and word.startswith("/"):
        candidates = match_names(word, "/", [*list_commands(), *catalogue.skills])
        if candidates or "/" not in word[1:]:
            return candidates
    if before == word and word.startswith("@"):
        return match_names(word, "@", catalogue.agents)
    if space and first.startswith("/") and before == f"{first} {word}":
        match get_argument_kind(first):
            case "agent":
                return match_names(word, "", catalogue.agents)
            case "model":
                return match_names(word, "", catalogue.models)
            case "mode":
                return match_names(
                    word, "", [NameEntry(name, about) for name, about in MODES.items()]
                )
            case "command":
                return match_names(word, "", list_commands())
            case "file":
                return match_paths(word, paths or list_paths)
    return match_paths(word, paths or list_paths) if is_path(word) else []


def find_word_start(text: str) -> int:
    """Return the index where the last word begins."""
    return max(text.rfind(space) for space in (" ", "\n", "\t")) + 1


def get_argument_kind(word: str) -> str:
    command = COMMANDS.get(word[1:])
    return command.argument_kind if command is not None else ""


def list_commands() -> list[NameEntry]:
    return [NameEntry(command.name, command.about) for command in COMMANDS.values()]


def match_names(word: str, mark: str, names: Iterable[NameEntry]) -> list[CompletionCandidate]:
    """Return names that begin with the word, then names that contain it."""
    typed = word.removeprefix(mark).lower()
    matches = [name for name in names if typed in name.name.lower()]
    matches.sort(key=lambda name: not name.name.lower().startswith(typed))
    return [
        CompletionCandidate(f"{mark}{name.name} ", len(word), f"{mark}{name.name}", name.about)
        for name in matches[:MAX_CANDIDATES]
    ]


def is_path(word: str) -> bool:
    return "/" in word or word in ("~", ".", "..")


def match_paths(word: str, paths: ListPaths) -> list[CompletionCandidate]:
    sorted_paths = sorted(paths(word))[:MAX_CANDIDATES]
    return [
        CompletionCandidate(
            path, len(word), path.rstrip("/").rpartition("/")[2] + get_trailing_slash(path)
        )
        for path in sorted_paths
    ]


def get_trailing_slash(path: str) -> str:
    return "/" if path.endswith("/") else ""


def list_paths(typed: str) -> list[str]:
    """List entries that begin as typed. Hidden ones only if the typed name begins with a dot."""
    directory, separator, rest = typed.rpartition("/")
    where = Path(f"{directory}{separator}" or ".")
    paths: list[str] = []
    try:
        with os.scandir(where.expanduser()) as entries:
            for _, entry in zip(range(MAX_DIRECTORY_ENTRIES), entries, strict=False):
                hidden = entry.name.startswith(".") and not rest.startswith(".")
                if entry.name.startswith(rest) and not hidden:
                    end = "/" if entry.is_dir() else ""
                    paths.append(f"{directory}{separator}{entry.name}{end}")
    except (OSError, RuntimeError):  # no such directory, no such user
        return []
    return paths
