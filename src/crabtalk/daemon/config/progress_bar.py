"""DownloadProgress: shows a download as a bar on a terminal, else as one line per file."""

import sys

import click

BAR_WIDTH = 24
MB = 1_000_000  # decimal, as in the announced `127 MB`


class DownloadProgress:
    """A context manager, so that the line of the bar always ends."""

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
    """`total` is 0 while the size is unknown."""
    if not total:
        return f"{name} {round(done / MB)} MB"
    full = done * BAR_WIDTH // total
    bar = f"{'#' * full}{'.' * (BAR_WIDTH - full)}"
    return f"[{bar}] {name} {round(done / MB)} of {round(total / MB)} MB"
