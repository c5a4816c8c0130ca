"""Agent files: one TOML file per agent, a person's as much as ours.

Saving edits a file statement by statement, so what need not change stays byte for byte. tomlkit
edits within a statement only: given a whole file, it takes the comment above a header for the end
of the table before, and removes or misplaces it with that.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from crabtalk.model.messages import Value
from crabtalk.transport import replace_file

from .agent import (
    AGENT_KEYS,
    SERVER_KEYS,
    Agent,
    AgentError,
    McpServer,
    Reader,
    check_name,
    read_agent,
)

Agents = list[Agent]
Broken = dict[str, str]


class AgentFiles:
    """The agents in a directory. Every call blocks: call it in a thread.

    Callers take care that no two calls change the same agent at once.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def list(self) -> tuple[Agents, Broken]:
        """All agents by name, and for each file that is none a sentence that says why."""
        agents: Agents = []
        broken: Broken = {}
        try:
            files = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return agents, broken
        for name in sorted(file.removesuffix(".toml") for file in files if is_ours(file)):
            shown = os.fsencode(name).decode(errors="replace")
            try:
                check_name(name)
            except AgentError as error:
                broken[shown] = f"{self._directory}/{shown}.toml: {error}"
                continue
            try:
                agent = self.load(name)
            except AgentError as error:
                broken[shown] = str(error)
            except OSError as error:
                broken[shown] = (
                    f"cannot read {self._path(name)}: {error.strerror}; check its rights"
                )
            else:
                if agent is not None:  # deleted a moment ago
                    agents.append(agent)
        return agents, broken

    def load(self, name: str) -> Agent | None:
        path = self._path(name)
        found = read(path)
        if found is None:
            return None
        try:
            return read_agent(name, found[1])
        except AgentError as error:
            raise AgentError(f"{path}: {error}") from None

    def save(self, agent: Agent) -> None:
        """Raises AgentError, and changes nothing, where the file is there but cannot be read."""
        path = self._path(agent.name)
        text, document = read(path) or ("", {})
        data = revised(text, document, agent).encode()
        if not self._directory.exists():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync(self._directory.parent)
        replace_file(path, data, 0o600)

    def delete(self, name: str) -> bool:
        """False when there was none."""
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            return False
        sync(self._directory)
        return True

    def rename(self, old: str, new: str) -> None:
        source, target = self._path(old), self._path(new)
        if os.path.lexists(target):
            raise AgentError(f"there is an agent {new!r} already; choose another name")
        try:
            source.rename(target)
        except FileNotFoundError:
            raise AgentError(f"there is no agent {old!r} to rename; check the name") from None
        sync(self._directory)

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._directory / f"{name}.toml"


def is_ours(file: str) -> bool:
    return file.endswith(".toml") and not file.startswith(".")


def read(path: Path) -> tuple[str, dict[str, Any]] | None:
    """The text of a file and what it says."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would never end
            raise AgentError(f"{path} is not a file; move it away")
        text = path.read_bytes().decode()
        return text, tomllib.loads(text)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise AgentError(f"{path} is not valid TOML: {error}; mend it or move it away") from None


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def revised(text: str, document: Mapping[str, Any], agent: Agent) -> str:
    """`text`, which says `document`, with `agent` in it."""
    editor = Editor(text)
    old = {key: value for key, value in document.items() if key != "mcps"}
    servers = document.get("mcps", [])
    places = by_name(servers)
    before = [servers[places[s.name]] if s.name in places else {} for s in agent.mcps]
    tables = [
        wanted(SERVER_KEYS, server, McpServer(name=""), table)
        for server, table in zip(agent.mcps, before, strict=True)
    ]
    try:
        editor.put((), old, wanted(AGENT_KEYS, agent, Agent(name="", prompt=""), old))
        editor.put_tables("mcps", servers, tables)
        is_right = says(tomllib.loads(editor.text()), document, agent)
    except ValueError:
        is_right = False
    if not is_right:
        raise AgentError(f"the file of {agent.name!r} cannot be changed safely; edit it by hand")
    return editor.text()


def says(document: Mapping[str, Any], before: Mapping[str, Any], agent: Agent) -> bool:
    """Whether that is the agent, with all else that was there before."""
    found = read_agent(agent.name, document)
    others = [{k: v for k, v in d.items() if k not in AGENT_KEYS} for d in (before, document)]
    is_equal = found == agent and same(found.hooks, agent.hooks)
    return is_equal and repr(others[0]) == repr(others[1])


def wanted(
    keys: Mapping[str, Reader], value: Value, default: Value, old: Mapping[str, Any]
) -> dict[str, Any]:
    """What a table should say: its unknown keys, what it says in other words, and the rest."""
    table = {key: entry for key, entry in old.items() if key not in keys}
    for key in keys:
        new = getattr(value, key)
        if key == "mcps":
            continue
        if key in old and means(keys[key], old[key], new):
            table[key] = old[key]
        elif new not in (None, {}) and (key in old or new != getattr(default, key)):
            table[key] = list(new) if isinstance(new, tuple) else new
    return table


def means(read: Reader, said: Any, value: Any) -> bool:
    try:
        return same(read(said, ""), value)
    except AgentError:
        return False


Keys = tuple[str | int, ...]  # a number after the name of an array of tables says which


@dataclass(slots=True)
class Piece:
    """A header or a key with the comments right above it, or what stands between those."""

    text: str
    kind: Literal["header", "key", "between"]
    path: Keys
    section: Keys  # the table it stands in
    above: str = ""


class Editor:
    """Changes a TOML text that is known to be valid. Raises ValueError where it does not know how.

    What becomes of comments: one right above a header or key goes where that goes; one that stands
    apart stays.
    """

    def __init__(self, text: str) -> None:
        self._pieces = pieces(text)
        self._eol = "\r\n" if "\r\n" in text else "\n"

    def text(self) -> str:
        return "".join(piece.above + piece.text for piece in self._pieces)

    def put(self, prefix: Keys, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Makes the table at `prefix` say `new` instead of `old`."""
        for key in old.keys() - new.keys():
            self._drop((*prefix, key))
        for key, value in new.items():
            path = (*prefix, key)
            if key not in old:
                self._add(path, value)
            elif not same(old[key], value):
                self._change(path, old[key], value)

    def put_tables(self, name: str, old: Any, new: list[dict[str, Any]]) -> None:
        """The same for an array of tables, which are known by their names."""
        if self._key_at((name,)):
            if not new and old:
                self._drop((name,))
            elif not same(old, new):
                self._change((name,), old, new)
            return
        if not isinstance(old, list):
            self._drop((name,))
            old = []
        known = by_name(old)
        order = [known.get(table["name"], len(old) + n) for n, table in enumerate(new)]
        for index in set(range(len(old))) - set(order):
            self._drop((name, index))
        self._arrange(name, [index for index in order if index < len(old)])
        place = next((i for i, p in enumerate(self._pieces) if p.path[:1] == (name,)), None)
        for index, table in zip(order, new, strict=True):
            if index >= len(old):
                self._add_table((name, index), f"[[{dotted((name,))}]]", place)
            self.put((name, index), old[index] if index < len(old) else {}, table)
            place = self._end_of((name, index))

    def _change(self, path: Keys, old: Any, new: Any) -> None:
        if piece := self._key_at(path):
            text = with_value(piece.text, path[len(piece.section) :], old, new)
            piece.text = text.replace("\r\n", "\n").replace("\n", self._eol)
        elif isinstance(old, dict) and isinstance(new, dict) and new:
            self.put(path, old, new)
        else:
            self._drop(path)
            self._add(path, new)

    def _add(self, path: Keys, value: Any) -> None:
        """Tables get a header if it has two names; deeper ones stand in a line."""
        prefix = path[:-1]
        if isinstance(value, dict) and len(path) <= 2:
            if prefix:
                self._add_table(path, f"[{dotted(path)}]", self._end_of(prefix))
            self.put(path, {}, value)
        elif place := self._place(prefix):
            index, section = place
            line = f"{dotted(path[len(section) :])} = {written(value, multiline=True)}\n"
            self._insert(index, Piece(line, "key", path, section))
        else:
            self._add_table(prefix, f"[{dotted(prefix)}]", self._end_of(prefix))
            self._add(path, value)

    def _add_table(self, path: Keys, header: str, place: int | None) -> None:
        index = len(self._pieces) if place is None else place
        if index and self._pieces[index - 1].text.strip():
            header = f"\n{header}"
        self._insert(index, Piece(f"{header}\n", "header", path, path))
        if index + 1 < len(self._pieces):
            self._insert(index + 1, Piece("\n", "between", path, path))

    def _end_of(self, path: Keys) -> int | None:
        """Where the last section of a table ends."""
        inside = [i for i, p in enumerate(self._pieces) if p.section[: len(path)] == path]
        return inside[-1] + 1 if inside else None

    def _insert(self, index: int, piece: Piece) -> None:
        piece.text = piece.text.replace("\n", self._eol)
        self._end_line(index - 1)
        self._pieces.insert(index, piece)

    def _end_line(self, index: int) -> None:
        if index >= 0 and not self._pieces[index].text.endswith("\n"):
            self._pieces[index].text += self._eol

    def _drop(self, path: Keys) -> None:
        self._pieces = [piece for piece in self._pieces if piece.path[: len(path)] != path]

    def _arrange(self, name: str, order: list[int]) -> None:
        """Puts an array of tables in order, if it is not."""
        groups: dict[Any, list[Piece]] = {}
        rest: list[Piece] = []
        first = 0
        for piece in self._pieces:
            if piece.path[:1] == (name,):
                first = first if groups else len(rest)
                groups.setdefault(piece.path[1], []).append(piece)
            else:
                rest.append(piece)
        if list(groups) != order:
            for group in groups.values():
                if group[-1].text.strip():
                    group.append(Piece(self._eol, "between", group[0].path, group[0].path))
            rest[first:first] = [piece for index in order for piece in groups[index]]
            self._pieces = rest

    def _key_at(self, path: Keys) -> Piece | None:
        return next((p for p in self._pieces if p.kind == "key" and p.path == path), None)

    def _place(self, prefix: Keys) -> tuple[int, Keys] | None:
        """Where a key of the table `prefix` can be added, and in which section that is."""
        found = list(enumerate(self._pieces))
        keys = [i for i, p in found if p.kind == "key" and p.section == prefix]
        headers = [i for i, p in found if p.kind == "header" and p.path == prefix]
        if keys or headers:
            return max(keys + headers) + 1, prefix
        if not prefix:
            return next((i for i, p in found if p.kind == "header"), len(found)), prefix
        for index, piece in reversed(found):
            is_within = piece.path[: len(prefix)] == prefix
            if piece.kind == "key" and is_within and len(piece.section) < len(prefix):
                return index + 1, piece.section
        return None


# Strings are told apart so that nothing inside them is taken for a bracket, a comment or an end.
TOKEN = re.compile(
    r'''
    """ [^"\\]* (?: (?: \\. | "{1,2}(?!") ) [^"\\]* )* "{3,5}
    | \'\'\' [^']* (?: '{1,2}(?!') [^']* )* '{3,5}
    | " (?: \\. | [^"\\\n] )* "
    | ' [^'\n]* '
    | \# [^\n]*
    | [\[{] | [\]}] | \n
    ''',
    re.DOTALL | re.VERBOSE,
)
START = re.compile(r"""(?:[^"'=]|"(?:\\.|[^"\\])*"|'[^']*')*=[ \t]*""")
UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')
UNSAFE_IN_LINES = re.compile(r'[\x00-\x08\x0b-\x1f\x7f\\]|"(?="")|"\Z')
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def pieces(text: str) -> list[Piece]:
    found: list[Piece] = []
    above = ""
    section: Keys = ()
    counts: dict[Keys, int] = {}
    for statement in statements(text):
        bare = statement.strip()
        if bare.startswith("#"):
            above += statement
            continue
        if not bare:
            found.append(Piece(above + statement, "between", section, section))
        elif bare.startswith("["):
            section = table_named(statement, counts)
            release(found, section)
            found.append(Piece(statement, "header", section, section, above))
        else:
            path = (*section, *keys_in(f"{up_to_value(statement)}0")[0])
            found.append(Piece(statement, "key", path, section, above))
        above = ""
    if above:
        found.append(Piece(above, "between", section, section))
    release(found, ())
    return found


def release(found: list[Piece], following: Keys) -> None:
    """Comments that stand apart between a hook or server and the next outlive both."""
    for before, piece in zip(reversed(found[:-1]), reversed(found), strict=False):
        if not piece.kind == before.kind == "between":
            return
        if piece.text.strip() and piece.section[:2] != following[:2]:
            piece.path = piece.section = ()


def statements(text: str) -> Iterator[str]:
    depth = start = 0
    for token in TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif token[0] == "\n" and depth == 0:
            yield text[start : token.end()]
            start = token.end()
    if start < len(text):
        yield text[start:]


def keys_in(statement: str) -> tuple[list[str], Any]:
    """The parts of its only key, and what that holds."""
    keys: list[str] = []
    value: Any = tomllib.loads(statement)
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        keys.append(key)
    return keys, value


def up_to_value(statement: str) -> str:
    """A key, and all up to its value."""
    match = START.match(statement)
    return match[0] if match else ""


def table_named(header: str, counts: dict[Keys, int]) -> Keys:
    """The table a header opens. `counts` says how far each array of tables has come."""
    keys, value = keys_in(header)
    path: Keys = ()
    for key in keys[:-1]:
        path = (*path, key)
        path = (*path, counts[path]) if path in counts else path
    path = (*path, keys[-1])
    if isinstance(value, list):
        counts[path] = counts.get(path, -1) + 1
        path = (*path, counts[path])
    return path


def with_value(statement: str, keys: Keys, old: Any, new: Any) -> str:
    """The statement with another value, and the spacing and comments it had."""
    if isinstance(old, list | dict):
        return with_entries(statement, keys, old, new)
    before = up_to_value(statement)
    rest = statement.removeprefix(before)
    string = TOKEN.match(rest) if rest[0] in "\"'" else None
    end = string.end() if string else len(rest.split("#")[0].rstrip())
    return f"{before}{written(new, multiline=True)}{rest[end:]}"


def with_entries(statement: str, keys: Keys, old: Any, new: Any) -> str:
    import tomlkit  # only those who need it pay for it
    from tomlkit.exceptions import TOMLKitError

    try:
        document: Any = tomlkit.parse(statement)
        table = document
        for key in keys[:-1]:
            table = table[key]
        amend(table, keys[-1], old, new)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ValueError(str(error)) from error


def amend(holder: Any, key: Any, old: Any, new: Any) -> None:
    """Changes a tomlkit value, and of lists and tables only the entries that differ."""
    import tomlkit

    if same(old, new):
        return
    if isinstance(old, list) and isinstance(new, list):
        amend_list(holder[key], old, new)
    elif isinstance(old, dict) and isinstance(new, dict):
        table = holder[key]
        for name in old.keys() - new.keys():
            del table[name]
        for name, value in new.items():
            if name in old:
                amend(table, name, old[name], value)
            else:
                table[name] = tomlkit.value(written(value))
    else:
        holder[key] = tomlkit.value(written(new))


def amend_list(array: Any, old: list[Any], new: list[Any]) -> None:
    from difflib import SequenceMatcher

    import tomlkit

    def known_by(entry: Any) -> str:
        return repr(entry.get("name")) if isinstance(entry, dict) else repr(entry)

    matcher = SequenceMatcher(None, [*map(known_by, old)], [*map(known_by, new)], autojunk=False)
    for tag, start, end, first, last in reversed(matcher.get_opcodes()):
        if tag == "equal":
            for offset in range(end - start):
                amend(array, start + offset, old[start + offset], new[first + offset])
            continue
        del array[start:end]
        for value in reversed(new[first:last]):
            array.insert(start, tomlkit.value(written(value)))


def written(value: Any, *, multiline: bool = False) -> str:
    """A value as TOML; where there is room for it, text of many lines as such."""
    match value:
        case bool():
            return str(value).lower()
        case str() if multiline and "\n" in value:
            return f'"""\n{UNSAFE_IN_LINES.sub(escaped, value)}"""'
        case str():
            return f'"{UNSAFE.sub(escaped, value)}"'
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            entries = [f"{dotted((key,))} = {written(entry)}" for key, entry in value.items()]
            return f"{{ {', '.join(entries)} }}" if entries else "{}"
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)


def escaped(match: re.Match[str]) -> str:
    return ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"


def dotted(path: Keys) -> str:
    return ".".join(
        key if re.fullmatch("[A-Za-z0-9_-]+", key) else written(key)
        for key in path
        if isinstance(key, str)
    )


def same(left: Any, right: Any) -> bool:
    """Unlike ==, tells true from 1 and 1 from 1.0."""
    return left is right or exact(left) == exact(right)


def exact(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def by_name(tables: Any) -> dict[str, int]:
    """Where each name stands first."""
    found: dict[str, int] = {}
    for index, table in enumerate(tables if isinstance(tables, list) else []):
        if isinstance(table, dict) and isinstance(table.get("name"), str):
            found.setdefault(table["name"], index)
    return found
