"""Progress: how far a download is. A bar on a terminal, a line per file elsewhere."""

import sys

import click

BAR_WIDTH = 24
MB = 1_000_000  # as `127 MB` is counted where the whole of it is announced


class DownloadProgress:
    """As a context, so that the line of the bar is ended whatever happens."""

    def __init__(self) -> None:
        self._last_line = ""

    def __enter__(self) -> "DownloadProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._last_line and sys.stderr.isatty():
            click.echo(err=True)

    def update(self, name: str, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            if name != self._last_line:
                click.echo(f"fetching {name}, {round(total / MB)} MB", err=True)
                self._last_line = name
            return
        line = format_bar(name, done, total)
        if line != self._last_line:
            # Padded, because the line before it may have been longer.
            click.echo(f"\r{line:<{len(self._last_line)}}", nl=False, err=True)
            self._last_line = line


def format_bar(name: str, done: int, total: int) -> str:
    """`total` is 0 while nobody has said how much there is."""
    if not total:
        return f"{name} {round(done / MB)} MB"
    full = done * BAR_WIDTH // total
    bar = f"{'#' * full}{'.' * (BAR_WIDTH - full)}"
    return f"[{bar}] {name} {round(done / MB)} of {round(total / MB)} MB"
