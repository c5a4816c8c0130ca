"""The command `crabtalk-search`: runs the component, and its tools on a terminal."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from . import __version__

if TYPE_CHECKING:
    from .tools import SearchTools

T = TypeVar("T")

EXAMPLES = """\b
Examples:
  crabtalk-search run
  crabtalk-search search "tide tables" --page 1
  crabtalk-search fetch https://example.com --json
"""


@click.group(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="crabtalk-search", message="%(prog)s %(version)s")
def main() -> None:
    """Search the web with several engines at once, and read its pages."""


home_option = click.option(
    "--home",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The daemon's directory  [default: $CRABTALK_HOME, else ~/.crabtalk]",
)
json_option = click.option(
    "--json", "in_json", is_flag=True, help="One JSON document on standard output."
)


@main.command(epilog=EXAMPLES)
@home_option
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def run(home: Path | None, verbose: bool) -> None:
    """Offer both tools to every agent of the daemon, until Ctrl+C or SIGTERM."""
    from .component import make_service

    with exit_on_errors():
        make_service(home).run(home, verbose=verbose)


@main.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--page", default=0, help="0 is the first.", show_default=True)
@home_option
@json_option
def search(query: tuple[str, ...], page: int, home: Path | None, in_json: bool) -> None:
    """Ask all engines. Exits with 1 when none of them answers.

    \b
    Examples:
      crabtalk-search search tide tables
      crabtalk-search search "tide tables" --json
    """
    with exit_on_errors():
        answer = call_tools(home, lambda tools: tools.search(" ".join(query), page))
        from .tools import format_answer, to_json

        if in_json or answer.results or not answer.engine_errors:
            click.echo(to_json(answer) if in_json else format_answer(answer))
        for failure in answer.engine_errors:
            click.echo(f"crabtalk-search: {failure.engine}: {failure.error}", err=True)
    if not answer.results and answer.engine_errors:
        sys.exit(1)


@main.command()
@click.argument("url")
@home_option
@json_option
def fetch(url: str, home: Path | None, in_json: bool) -> None:
    """Read a page as Markdown.

    \b
    Examples:
      crabtalk-search fetch https://example.com
      crabtalk-search fetch https://example.com --json
    """
    with exit_on_errors():
        page = call_tools(home, lambda tools: tools.fetch(url))
        from .tools import format_page, to_json

        click.echo(to_json(page) if in_json else format_page(page))


def call_tools(home: Path | None, call: "Callable[[SearchTools], Awaitable[T]]") -> T:
    """Call the tools with the configuration in `home`."""
    from .component import find_config_path
    from .config import load_config, warn_of_unknown_keys

    config = load_config(find_config_path(home))
    warn_of_unknown_keys(config)

    async def run() -> T:
        from .tools import open_tools

        async with open_tools(config) as tools:
            return await call(tools)

    return asyncio.run(run())


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """Print an error as one sentence on stderr and exit with 1; Ctrl+C exits with 130."""
    from .errors import FetchError, SearchConfigError, SearchError

    try:
        yield
    except (SearchConfigError, FetchError, SearchError) as error:
        click.echo(f"crabtalk-search: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
