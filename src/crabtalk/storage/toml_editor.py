"""Editor: changes a TOML text and leaves alone what need not change, comments above all.

It works statement by statement. tomlkit edits within a statement only: given a whole file, it takes
the comment above a header for the end of the table before, and removes or misplaces it with that.
"""

from collections.abc import Mapping
from typing import Any

from .toml_pieces import Keys, Piece, pieces
from .toml_values import dotted, same, with_value, written


class Editor:
    """Changes a TOML text that is known to be valid.

    A comment right above a header or a key goes where that goes; one that stands apart stays.
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


def by_name(tables: Any) -> dict[str, int]:
    """Where each name stands first."""
    found: dict[str, int] = {}
    for index, table in enumerate(tables if isinstance(tables, list) else []):
        if isinstance(table, dict) and isinstance(table.get("name"), str):
            found.setdefault(table["name"], index)
    return found
