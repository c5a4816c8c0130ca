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
                agents += [agent] if agent else []  # None: deleted a moment ago
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
            self._directory.mkdir(mode=0o700, parents=True)
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
    editor.put((), old, wanted(AGENT_KEYS, agent, Agent(name="", prompt=""), old))
    if "mcps" in document or agent.mcps:
        editor.put_servers(document.get("mcps", []), agent.mcps)
    result = editor.text()
    if not says(result, document, agent):
        raise AgentError(f"the file of {agent.name!r} cannot be changed safely; edit it by hand")
    return result


def says(text: str, before: Mapping[str, Any], agent: Agent) -> bool:
    """Whether that is the agent, with all else that was there before."""
    try:
        after = tomllib.loads(text)
    except ValueError:
        return False
    found = read_agent(agent.name, after)
    others = [{k: v for k, v in d.items() if k not in AGENT_KEYS} for d in (before, after)]
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


def same(left: Any, right: Any) -> bool:
    """Unlike ==, tells true from 1 and 1 from 1.0."""
    return left is right or exact(left) == exact(right)


def exact(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


Keys = tuple[str | int, ...]  # a number after the name of an array of tables says which


@dataclass(slots=True)
class Piece:
    """A header or a key with the comments right above it, or what stands between those."""

    text: str
    kind: Literal["header", "key", "between"]
    path: Keys
    section: Keys  # the table it stands in


class Editor:
    """The pieces of a TOML text that is known to be valid."""

    def __init__(self, text: str) -> None:
        self._pieces = pieces(text)
        self._eol = "\r\n" if "\r\n" in text else "\n"

    def text(self) -> str:
        return "".join(piece.text for piece in self._pieces)

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

    def put_servers(self, old: Any, new: tuple[McpServer, ...]) -> None:
        """The same for `mcps`, whose entries are known by their names."""
        entries = old if isinstance(old, list) else []
        places = {}
        for index, entry in reversed(list(enumerate(entries))):
            if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
                places[entry["name"]] = index
        order = [places.get(server.name, len(entries) + n) for n, server in enumerate(new)]
        before = [entries[index] if index < len(entries) else {} for index in order]
        tables = [
            wanted(SERVER_KEYS, server, McpServer(name=""), table)
            for server, table in zip(new, before, strict=True)
        ]
        if self._key_at(("mcps",)):
            if tables and not same(old, tables):
                self._change(("mcps",), old, tables)
            elif old and not tables:
                self._drop(("mcps",))
            return
        if not isinstance(old, list):
            self._drop(("mcps",))
        for index in set(range(len(entries))) - set(order):
            self._drop(("mcps", index))
        self._arrange([index for index in order if index < len(entries)])
        place = next((i for i, p in enumerate(self._pieces) if p.path[:1] == ("mcps",)), None)
        for index, said, table in zip(order, before, tables, strict=True):
            if index >= len(entries):
                self._add_table(("mcps", index), "[[mcps]]", place)
            self.put(("mcps", index), said, table)
            place = self._end_of(("mcps", index))

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
        prefix = path[:-1]
        if path == ("hooks",):
            self.put(path, {}, value)
        elif prefix == ("hooks",):
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

    def _arrange(self, order: list[int]) -> None:
        """Puts the servers in order, if they are not."""
        groups: dict[Any, list[Piece]] = {}
        rest: list[Piece] = []
        first = 0
        for piece in self._pieces:
            if piece.path[:1] == ("mcps",):
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
KEY = re.compile(r"""\A((?:[^"'=]|"(?:\\.|[^"\\])*"|'[^']*')*)=.*""", re.DOTALL)
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
            found.append(Piece(above + statement, "header", section, section))
        else:
            path = (*section, *keys_in(KEY.sub(r"\1= 0", statement))[0])
            found.append(Piece(above + statement, "key", path, section))
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
    import tomlkit  # only those who save pay for it

    document: Any = tomlkit.parse(statement)
    table = document
    for key in keys[:-1]:
        table = table[key]
    amend(table, keys[-1], old, new)
    return tomlkit.dumps(document)


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
        holder[key] = tomlkit.value(written(new, multiline=isinstance(key, str)))


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
