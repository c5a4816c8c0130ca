"""Suggests the rules that "Always" would store for a shell line."""

import shlex

from .commands import SimpleCommand, UnreadableCommandError, split_name_set
from .parser import parse_commands
from .rules import covers_all_commands, is_transparent_wrapper, parse_shell_rule

# Programs with subcommands → subcommands after which a further word says what is run.
SUBCOMMANDS: dict[str, frozenset[str]] = {
    program: frozenset(deeper.split())
    for program, deeper in {
        "apt": "",
        "apt-get": "",
        "brew": "",
        "bundle": "",
        "cargo": "",
        "composer": "",
        "deno": "task",
        "docker": "compose container image network volume system",
        "dotnet": "",
        "gem": "",
        "gh": "pr issue run repo release workflow",
        "git": "stash worktree remote",
        "go": "mod",
        "gradle": "",
        "helm": "",
        "hg": "",
        "just": "",
        "kubectl": "config rollout",
        "lerna": "",
        "make": "",
        "mix": "",
        "mvn": "",
        "ninja": "",
        "nox": "",
        "npm": "run run-script",
        "nx": "",
        "pdm": "run",
        "pip": "",
        "pip3": "",
        "pnpm": "run",
        "poetry": "",
        "rails": "",
        "rake": "",
        "ruff": "",
        "rustup": "",
        "swift": "",
        "systemctl": "",
        "task": "",
        "terraform": "state workspace",
        "tox": "",
        "turbo": "run",
        "uv": "pip tool",
        "yarn": "run",
    }.items()
}
# Subcommands that run programs, change settings that run programs, or have effects elsewhere.
EXACT_SUBCOMMANDS = split_name_set(
    "bisect config debug difftool dlx eval exec filter-branch mergetool run rebase "
    "runner shell ssh submodule tool x push publish login"
)
# Programs that only read, or build and test; they are safe with any arguments.
PREFIX_PROGRAMS = split_name_set(
    "basename black cat cksum cmp column comm cut cd df diff dirname du echo eslint "
    "expr false flake8 fmt grep head id isort jq ls md5sum mkdir mypy nl od paste "
    "prettier printf ps pwd pyright readlink realpath rg seq sha1sum sha256sum "
    "shellcheck sleep stat strings tac tail test touch tr true tsc type uname wc "
    "whereis which whoami"
)


def suggest_shell_rules(line: str) -> tuple[str, ...] | None:
    """Return rules that together allow the line, or None if no safe rules exist.

    A program with subcommands is allowed with this subcommand, a few harmless programs with any
    arguments, and everything else (interpreters, shells, rm, curl) with exactly these words.
    """
    try:
        commands = parse_commands(line)
    except UnreadableCommandError:
        return None
    known = [command for command in commands if not command.is_guess]
    wrapping = {id(command.parent) for command in known}
    exact: set[int] = set()
    rules: list[str] = []
    for command in known:
        if not command.program or is_transparent_wrapper(command, id(command) in wrapping):
            continue
        if has_ancestor(command, exact):
            continue
        rule = suggest_command_rule(command)
        if not rule.endswith(":*"):
            exact.add(id(command))
        if rule not in rules:
            rules.append(rule)
    try:
        is_enough = covers_all_commands([parse_shell_rule(rule) for rule in rules], commands)
    except ValueError:
        return None
    return tuple(rules) if rules and is_enough else None


def suggest_command_rule(command: SimpleCommand) -> str:
    words = [word.text for word in command.words]
    exact = shlex.join([command.path, *words])
    if "/" in command.path:
        return exact
    if command.program in PREFIX_PROGRAMS:
        return f"{command.program}:*"
    deeper = SUBCOMMANDS.get(command.program)
    if deeper is None or not words or words[0].startswith("-"):
        return exact
    wanted = 2 if words[0] in deeper else 1
    if len(words) < wanted or any(word.startswith("-") or "=" in word for word in words[:wanted]):
        return exact
    if wanted == 1 and words[0] in EXACT_SUBCOMMANDS:
        return exact
    if command.program in ("make", "just", "rake", "task", "ninja"):
        return exact
    return f"{shlex.join([command.program, *words[:wanted]])}:*"


def has_ancestor(command: SimpleCommand, ids: set[int]) -> bool:
    outer = command.parent
    while outer is not None:
        if id(outer) in ids:
            return True
        outer = outer.parent
    return False
