"""Candidates: what the word before the cursor may become. Asks nobody but the file system.

Commands and skills after a leading `/`, agents after a leading `@`, what a command takes after its
name, and paths anywhere.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from crabtalk.cli.options import MODES
from crabtalk.protocol import wire

from .command_table import COMMANDS

MAX_CANDIDATES = 200  # a menu nobody reads to the end
MAX_DIRECTORY_ENTRIES = 20_000  # of a directory, looked at

# Given what was typed of a path: how it may go on, directories with a slash at the end.
ListPaths = Callable[[str], Iterable[str]]


class NameEntry(NamedTuple):
    name: str
    about: str = ""
    model: str = ""  # of an agent: its own
    limit: int = 0  # of a model: tokens it reads at once; 0 where that is not known


class NameCatalogue(NamedTuple):
    """The names there are, as the daemon last told them."""

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
        """Its own, else the active one."""
        own = next((known.model for known in self.agents if known.name == agent), "")
        return own or self.active_model

    def get_context_limit(self, agent: str) -> int:
        """Tokens that its model reads at once; 0 where that is not known."""
        model = self.get_model(agent)
        return next((known.limit for known in self.models if known.name == model), 0)


class CompletionCandidate(NamedTuple):
    """`text` takes the place of the `length` characters before the cursor."""

    text: str
    length: int
    display: str
    meta: str = ""


def find_candidates(
    text: str, cursor: int, catalogue: NameCatalogue, paths: ListPaths | None = None
) -> list[CompletionCandidate]:
    """The best first, no more than a menu takes."""
    before = text[:cursor]
    word = before[find_word_start(before) :]
    first, space, _ = before.partition(" ")
    if before == word and word.startswith("/"):
        found = match_names(word, "/", [*list_commands(), *catalogue.skills])
        if found or "/" not in word[1:]:
            return found
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
    """Where the last word begins."""
    return max(text.rfind(space) for space in (" ", "\n", "\t")) + 1


def get_argument_kind(word: str) -> str:
    command = COMMANDS.get(word[1:])
    return command.argument_kind if command is not None else ""


def list_commands() -> list[NameEntry]:
    return [NameEntry(command.name, command.about) for command in COMMANDS.values()]


def match_names(word: str, mark: str, names: Iterable[NameEntry]) -> list[CompletionCandidate]:
    """Names that begin as the word does, then those that have it inside."""
    typed = word.removeprefix(mark).lower()
    fitting = [name for name in names if typed in name.name.lower()]
    fitting.sort(key=lambda name: not name.name.lower().startswith(typed))
    return [
        CompletionCandidate(f"{mark}{name.name} ", len(word), f"{mark}{name.name}", name.about)
        for name in fitting[:MAX_CANDIDATES]
    ]


def is_path(word: str) -> bool:
    return "/" in word or word in ("~", ".", "..")


def match_paths(word: str, paths: ListPaths) -> list[CompletionCandidate]:
    found = sorted(paths(word))[:MAX_CANDIDATES]
    return [
        CompletionCandidate(
            path, len(word), path.rstrip("/").rpartition("/")[2] + get_trailing_slash(path)
        )
        for path in found
    ]


def get_trailing_slash(path: str) -> str:
    return "/" if path.endswith("/") else ""


def list_paths(typed: str) -> list[str]:
    """Entries that go on as it was typed. Hidden ones only for those who begin with a dot."""
    directory, separator, rest = typed.rpartition("/")
    where = Path(f"{directory}{separator}" or ".")
    found: list[str] = []
    try:
        with os.scandir(where.expanduser()) as entries:
            for _, entry in zip(range(MAX_DIRECTORY_ENTRIES), entries, strict=False):
                hidden = entry.name.startswith(".") and not rest.startswith(".")
                if entry.name.startswith(rest) and not hidden:
                    end = "/" if entry.is_dir() else ""
                    found.append(f"{directory}{separator}{entry.name}{end}")
    except (OSError, RuntimeError):  # no such directory, no such user
        return []
    return found
