"""TomlEditor: changes values in a TOML text and preserves the rest, above all the comments.

It works statement by statement. tomlkit is used only within a statement: in a whole file, it
attaches the comment above a header to the table before, and removes or moves it with that table.
"""

from collections.abc import Mapping
from typing import Any

from .toml_statements import Keys, TomlStatement, parse_statements
from .toml_values import is_same_value, render_dotted_key, render_value, replace_value


class TomlEditor:
    """Edits a TOML text, which must be valid.

    A comment right above a header or a key moves with it; other comments stay.
    """

    def __init__(self, text: str) -> None:
        self._statements = parse_statements(text)
        self._line_end = "\r\n" if "\r\n" in text else "\n"

    def text(self) -> str:
        return "".join(statement.above + statement.text for statement in self._statements)

    def update_table(self, prefix: Keys, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Changes the table at `prefix` from `old` to `new`."""
        for key in old.keys() - new.keys():
            self._remove((*prefix, key))
        for key, value in new.items():
            path = (*prefix, key)
            if key not in old:
                self._add_value(path, value)
            elif not is_same_value(old[key], value):
                self._change_value(path, old[key], value)

    def update_table_array(self, name: str, old: Any, new: list[dict[str, Any]]) -> None:
        """Changes an array of tables, which are matched by their names."""
        if self._find_key((name,)):
            if not new and old:
                self._remove((name,))
            elif not is_same_value(old, new):
                self._change_value((name,), old, new)
            return
        if not isinstance(old, list):
            self._remove((name,))
            old = []
        known = index_by_name(old)
        order = [known.get(table["name"], len(old) + n) for n, table in enumerate(new)]
        for index in set(range(len(old))) - set(order):
            self._remove((name, index))
        self._reorder_tables(name, [index for index in order if index < len(old)])
        position = next((i for i, p in enumerate(self._statements) if p.path[:1] == (name,)), None)
        for index, table in zip(order, new, strict=True):
            if index >= len(old):
                self._add_table((name, index), f"[[{render_dotted_key((name,))}]]", position)
            self.update_table((name, index), old[index] if index < len(old) else {}, table)
            position = self._find_table_end((name, index))

    def _change_value(self, path: Keys, old: Any, new: Any) -> None:
        if statement := self._find_key(path):
            text = replace_value(statement.text, path[len(statement.section) :], old, new)
            statement.text = text.replace("\r\n", "\n").replace("\n", self._line_end)
        elif isinstance(old, dict) and isinstance(new, dict) and new:
            self.update_table(path, old, new)
        else:
            self._remove(path)
            self._add_value(path, new)

    def _add_value(self, path: Keys, value: Any) -> None:
        """A table gets a header of at most two names; deeper tables are written inline."""
        prefix = path[:-1]
        if isinstance(value, dict) and len(path) <= 2:
            if prefix:
                self._add_table(path, f"[{render_dotted_key(path)}]", self._find_table_end(prefix))
            self.update_table(path, {}, value)
        elif insertion_point := self._find_insertion_point(prefix):
            index, section = insertion_point
            key = render_dotted_key(path[len(section) :])
            line = f"{key} = {render_value(value, multiline=True)}\n"
            self._insert(index, TomlStatement(line, "key", path, section))
        else:
            self._add_table(prefix, f"[{render_dotted_key(prefix)}]", self._find_table_end(prefix))
            self._add_value(path, value)

    def _add_table(self, path: Keys, header: str, position: int | None) -> None:
        index = len(self._statements) if position is None else position
        if index and self._statements[index - 1].text.strip():
            header = f"\n{header}"
        self._insert(index, TomlStatement(f"{header}\n", "header", path, path))
        if index + 1 < len(self._statements):
            self._insert(index + 1, TomlStatement("\n", "between", path, path))

    def _find_table_end(self, path: Keys) -> int | None:
        """The index after the last statement of a table; None without such a table."""
        inside = [i for i, p in enumerate(self._statements) if p.section[: len(path)] == path]
        return inside[-1] + 1 if inside else None

    def _insert(self, index: int, statement: TomlStatement) -> None:
        statement.text = statement.text.replace("\n", self._line_end)
        self._terminate_line(index - 1)
        self._statements.insert(index, statement)

    def _terminate_line(self, index: int) -> None:
        if index >= 0 and not self._statements[index].text.endswith("\n"):
            self._statements[index].text += self._line_end

    def _remove(self, path: Keys) -> None:
        self._statements = [
            statement for statement in self._statements if statement.path[: len(path)] != path
        ]

    def _reorder_tables(self, name: str, order: list[int]) -> None:
        """Brings an array of tables into this order."""
        groups: dict[Any, list[TomlStatement]] = {}
        rest: list[TomlStatement] = []
        first = 0
        for statement in self._statements:
            if statement.path[:1] == (name,):
                first = first if groups else len(rest)
                groups.setdefault(statement.path[1], []).append(statement)
            else:
                rest.append(statement)
        if list(groups) != order:
            for group in groups.values():
                if group[-1].text.strip():
                    group.append(
                        TomlStatement(self._line_end, "between", group[0].path, group[0].path)
                    )
            rest[first:first] = [statement for index in order for statement in groups[index]]
            self._statements = rest

    def _find_key(self, path: Keys) -> TomlStatement | None:
        return next((p for p in self._statements if p.kind == "key" and p.path == path), None)

    def _find_insertion_point(self, prefix: Keys) -> tuple[int, Keys] | None:
        """The index at which a key of the table `prefix` can be added, and the section there."""
        numbered = list(enumerate(self._statements))
        keys = [i for i, p in numbered if p.kind == "key" and p.section == prefix]
        headers = [i for i, p in numbered if p.kind == "header" and p.path == prefix]
        if keys or headers:
            return max(keys + headers) + 1, prefix
        if not prefix:
            return next((i for i, p in numbered if p.kind == "header"), len(numbered)), prefix
        for index, statement in reversed(numbered):
            is_within = statement.path[: len(prefix)] == prefix
            if statement.kind == "key" and is_within and len(statement.section) < len(prefix):
                return index + 1, statement.section
        return None


def index_by_name(tables: Any) -> dict[str, int]:
    """The index of the first table with each name."""
    indexes: dict[str, int] = {}
    for index, table in enumerate(tables if isinstance(tables, list) else []):
        if isinstance(table, dict) and isinstance(table.get("name"), str):
            indexes.setdefault(table["name"], index)
    return indexes
