"""Progress: how far a download is. A bar on a terminal, a line per file elsewhere."""

import sys

import click

BAR = 24
MB = 1_000_000  # as `127 MB` is counted where the whole of it is announced


class Progress:
    """As a context, so that the line of the bar is ended whatever happens."""

    def __init__(self) -> None:
        self._shown = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and sys.stderr.isatty():
            click.echo(err=True)

    def update(self, name: str, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            if name != self._shown:
                click.echo(f"fetching {name}, {round(total / MB)} MB", err=True)
                self._shown = name
            return
        line = bar(name, done, total)
        if line != self._shown:
            # Padded, because the line before it may have been longer.
            click.echo(f"\r{line:<{len(self._shown)}}", nl=False, err=True)
            self._shown = line


def bar(name: str, done: int, total: int) -> str:
    """`total` is 0 while nobody has said how much there is."""
    if not total:
        return f"{name} {round(done / MB)} MB"
    full = done * BAR // total
    return f"[{'#' * full}{'.' * (BAR - full)}] {name} {round(done / MB)} of {round(total / MB)} MB"
