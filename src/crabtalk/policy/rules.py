"""Rules: parses rules such as `bash(git status:*)` or `edit(src/**)` and matches calls to them.

A rule names a tool and, in brackets, a pattern for the target of the call: words of a command, a
path, an MCP tool, a domain, an agent. A rule without brackets matches every call of the tool.
"""

import json
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from crabtalk.runtime import ToolAccess, ToolDispatch
from crabtalk.storage import Agent, AgentError

if TYPE_CHECKING:
    # Imported late at run time: a daemon that runs no commands does not load the shell parser.
    from .shell.commands import SimpleCommand
    from .shell.rules import ShellRule

RULE_PATTERN = re.compile(r"(?P<tool>[^()\s]+)(?:\((?P<pattern>.*)\))?", re.DOTALL)
UNCLEAR_HOST = re.compile(r"[%\x00-\x1f\x7f]")
RULE_LISTS = ("allow", "ask", "deny", "strangers")


class Rule(msgspec.Struct, frozen=True):
    """With `pattern` None it matches every call of the tool."""

    tool: str
    pattern: str | None = None

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"


def parse_rule(text: str) -> Rule:
    """Raises ValueError with a message for an invalid rule."""
    match = RULE_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text[:80]!r} is no rule; write a tool and a pattern, such as "
            '"bash(git status:*)", "edit(src/**)" or "mcp(github__*)"'
        )
    rule = Rule(match["tool"], match["pattern"])
    if rule.pattern is not None and not rule.pattern.strip():
        raise ValueError(
            f"{text[:80]!r} has an empty pattern; leave the brackets out for all calls"
        )
    if rule.pattern is not None and re.search(r"[*?\[]", rule.tool):
        raise ValueError(
            f"{text[:80]!r} has a pattern for several tools; write one rule for each tool"
        )
    if rule.tool == "bash" and rule.pattern is not None:
        parse_cached_shell_rule(rule.pattern)
    return rule


class Permissions(msgspec.Struct, frozen=True):
    """The rules in [permissions] and `approve` of an agent's file."""

    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    strangers: tuple[Rule, ...] = ()  # what strangers may do in addition

    @classmethod
    def from_agent(cls, agent: Agent) -> "Permissions":
        """Raises AgentError for invalid rules."""
        return _parse_permissions(msgspec.json.encode(agent.permissions), agent.approve)


@cache
def _parse_permissions(table: bytes, approve: tuple[str, ...]) -> Permissions:
    """Cached, because every call is judged and agents change rarely."""
    entries_by_list: dict[str, list[str]] = msgspec.json.decode(table)
    lists: dict[str, tuple[Rule, ...]] = {}
    for name, entries in entries_by_list.items():
        if name not in RULE_LISTS:
            raise AgentError(f"permissions.{name} is no list; there are {', '.join(RULE_LISTS)}")
        try:
            lists[name] = tuple(parse_rule(entry) for entry in entries)
        except ValueError as error:
            raise AgentError(f"permissions.{name}: {error}") from None
    approve_rules = tuple(Rule(entry) for entry in approve)
    return Permissions(
        allow=lists.get("allow", ()),
        ask=(*approve_rules, *lists.get("ask", ())),
        deny=lists.get("deny", ()),
        strangers=lists.get("strangers", ()),
    )


class PermissionRequest:
    """A call with what rules match: names, arguments, path and commands, each computed once."""

    def __init__(self, call: ToolDispatch, names: Sequence[str], access: ToolAccess) -> None:
        self.call = call
        self.names = tuple(names)
        self.access = access

    @cached_property
    def arguments(self) -> dict[str, Any]:
        return self._parsed_arguments or {}

    @property
    def has_readable_arguments(self) -> bool:
        """False if the arguments are no JSON object for us. The tool may parse them differently, so
        such a call cannot be checked."""
        return self._parsed_arguments is not None

    @cached_property
    def _parsed_arguments(self) -> dict[str, Any] | None:
        return parse_json_object(self.call.arguments or "{}")

    @property
    def variable_names(self) -> Sequence[str]:
        """The names of the environment variables that the call sets for its command."""
        env = self.arguments.get("env")
        return tuple(env) if isinstance(env, dict) else ()

    @cached_property
    def path(self) -> Path | None:
        """The resolved path of the file a call uses. Blocks: read it in a thread."""
        if self.access.kind not in ("read", "edit") or not self.access.target:
            return None
        try:
            return Path(os.path.realpath(self.call.cwd / self.access.target))
        except (OSError, ValueError):
            return None

    @cached_property
    def commands(self) -> "tuple[SimpleCommand, ...] | None":
        """All simple commands of a command line; None if it cannot be parsed."""
        from .shell.commands import UnreadableCommandError
        from .shell.parser import parse_commands

        try:
            return parse_commands(self.access.target)
        except UnreadableCommandError:
            return None

    @cached_property
    def host(self) -> str | None:
        """The domain a call fetches from; None if it is not clear."""
        arguments: dict[str, Any] | None = self.arguments
        if self.access.kind == "mcp" and self.call.name not in self.names:
            # Called through the tool `mcp`, whose arguments contain those of the server's tool.
            inner = self.arguments.get("args")
            arguments = parse_json_object(inner) if isinstance(inner, str) else inner
        url = arguments.get("url") if isinstance(arguments, dict) else None
        return parse_host(url) if isinstance(url, str) else None


def parse_json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def parse_host(url: str) -> str | None:
    """Return the host of a URL as resolvers see it; None if programs may disagree about it."""
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return None
    host = unicodedata.normalize("NFKC", host).lower().replace("\u3002", ".").rstrip(".")
    return None if not host or UNCLEAR_HOST.search(host) or "\\" in url else host


def find_matching_rule(
    rules: Sequence[Rule], request: PermissionRequest, directory: Path | None = None
) -> Rule | None:
    """Return the first rule that matches the call or any part of it. Used for deny and ask.

    Relative patterns start at `directory`, by default the working directory of the call.
    """
    base = directory or request.call.cwd
    return next((rule for rule in rules if matches_request(rule, request, base)), None)


def find_covering_rules(
    rules: Sequence[Rule], request: PermissionRequest, directory: Path | None = None
) -> str | None:
    """Return the rules that together cover the whole call, as text, or None. Used for allow.

    Every simple command of a command line must be covered, and the environment variables that the
    call sets must be harmless.
    """
    plain = [
        rule
        for rule in rules
        if rule.pattern is None
        or not (is_shell_rule(rule, request) or (rule.tool == "fetch" and request.host is None))
    ]
    if (rule := find_matching_rule(plain, request, directory)) is not None:
        return str(rule)
    patterns = [rule.pattern for rule in rules if is_shell_rule(rule, request) and rule.pattern]
    if patterns and request.commands is not None:
        from .shell.rules import are_safe_variables, covers_all_commands

        parsed = [parse_cached_shell_rule(pattern) for pattern in patterns]
        if are_safe_variables(request.variable_names) and covers_all_commands(
            parsed, request.commands
        ):
            return ", ".join(f"bash({pattern})" for pattern in patterns)
    return None


def matches_request(rule: Rule, request: PermissionRequest, directory: Path) -> bool:
    if rule.tool == "mcp":
        return request.access.kind == "mcp" and is_mcp_match(rule, request)
    if rule.tool == "fetch" and rule.pattern is not None:
        return is_fetch_call(request) and is_domain_match(rule.pattern, request.host)
    if not any(fnmatchcase(name, rule.tool) for name in request.names):
        return False
    if rule.pattern is None:
        return True
    if is_shell_rule(rule, request):
        return is_shell_match(rule.pattern, request)
    if request.access.kind in ("read", "edit"):
        return request.path is not None and is_path_match(rule.pattern, request.path, directory)
    return fnmatchcase(request.access.target, rule.pattern)


def is_shell_match(pattern: str, request: PermissionRequest) -> bool:
    """Whether a deny or ask rule matches. A command that cannot be parsed matches every rule."""
    from .shell.commands import UnreadableCommandError
    from .shell.rules import matches_any_command

    if request.commands is None:
        return True
    try:
        return matches_any_command(parse_cached_shell_rule(pattern), request.commands)
    except UnreadableCommandError:
        return True


def is_shell_rule(rule: Rule, request: PermissionRequest) -> bool:
    return request.access.kind == "shell" and rule.tool in request.names


def is_mcp_match(rule: Rule, request: PermissionRequest) -> bool:
    return rule.pattern is None or any(fnmatchcase(name, rule.pattern) for name in request.names)


def is_fetch_call(request: PermissionRequest) -> bool:
    return any(name == "fetch" or name.endswith("__fetch") for name in request.names)


def is_domain_match(pattern: str, host: str | None) -> bool:
    """Whether a domain pattern matches. It includes subdomains; an unclear host always matches."""
    domain = pattern.strip().lower().removeprefix("*.").rstrip(".")
    if host is None:
        return True
    return domain == "*" or host == domain or host.endswith(f".{domain}")


def is_path_match(pattern: str, path: Path, directory: Path) -> bool:
    """Whether a path pattern matches. Relative patterns start at `directory`.

    `path` is resolved, so the pattern is also tried with its folders resolved: one of them may be a
    link.
    """
    expanded = Path(pattern).expanduser() if pattern.startswith("~") else Path(pattern)
    absolute = expanded if expanded.is_absolute() else Path(os.path.realpath(directory)) / expanded
    return any(
        compile_glob(str(candidate))(str(path)) is not None
        for candidate in {absolute, resolve_pattern_folders(absolute)}
    )


def resolve_pattern_folders(pattern: Path) -> Path:
    """Resolve the leading folders of a pattern, up to the first part with a wildcard."""
    parts = pattern.parts
    plain = next((at for at, part in enumerate(parts) if re.search(r"[*?]", part)), len(parts))
    try:
        return Path(os.path.realpath(Path(*parts[:plain])), *parts[plain:])
    except (OSError, ValueError):
        return pattern


@cache
def compile_glob(pattern: str) -> Callable[[str], re.Match[str] | None]:
    """`*` and `?` match within one path component, `**` matches across folders."""
    pieces: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("/**/", at):
            pieces.append("/(?:.*/)?")
            at += 4
        elif pattern.startswith("**", at):
            pieces.append(".*")
            at += 2
        else:
            sign = pattern[at]
            pieces.append({"*": "[^/]*", "?": "[^/]"}.get(sign, re.escape(sign)))
            at += 1
    return re.compile("".join(pieces), re.DOTALL).fullmatch


@cache
def parse_cached_shell_rule(pattern: str) -> "ShellRule":
    from .shell.rules import parse_shell_rule

    return parse_shell_rule(pattern)
