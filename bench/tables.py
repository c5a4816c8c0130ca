"""The table a benchmark returns, and its Markdown for the terminal and the README."""

from dataclasses import dataclass, field


@dataclass
class BenchTable:
    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""

    def add_row(self, *cells: str) -> None:
        self.rows.append(list(cells))

    def render_markdown(self) -> str:
        widths = [
            max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))
        ]

        def line(cells: list[str]) -> str:
            padded = [
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            return f"| {' | '.join(padded)} |"

        rule = [
            "-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)
        ]
        lines = [f"### {self.title}", "", line(self.columns), line(rule), *map(line, self.rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])
