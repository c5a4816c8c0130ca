"""crabtalkd: the daemon's command line."""

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import click

from crabtalk import __version__
from crabtalk.service.command_line import CommandGroup

# Directory of the local model, in the home.
MODELS_DIRECTORY = "models"
PROVIDER_KINDS = ("openai", "anthropic", "google", "bedrock", "azure", "local")

EXAMPLES = """\b
Examples:
  crabtalkd run
  crabtalkd setup
"""

RUN_EXAMPLES = """\b
Examples:
  crabtalkd run
  crabtalkd run --home /tmp/crab --tcp off
"""


@click.group(
    "crabtalkd",
    cls=CommandGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="crabtalkd", message="%(prog)s %(version)s")
def main() -> None:
    """The agent daemon: owns conversations, runs agents, serves clients."""


home_option = click.option(
    "--home",
    metavar="DIR",
    help="The daemon's directory  [default: $CRABTALK_HOME, else ~/.crabtalk]",
)


@main.command(epilog=RUN_EXAMPLES)
@home_option
@click.option(
    "--tcp",
    metavar="ADDR|off",
    help="HOST:PORT to listen on beside the Unix socket  [default: 127.0.0.1:6688]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How lines on stderr and in logs/ look.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def run(
    home: str | None, tcp: str | None, log_format: Literal["text", "json"], verbose: bool
) -> None:
    """Run in the foreground until Ctrl+C or SIGTERM."""
    # Nothing that is loaded becomes garbage: looking for it costs 15 ms of the start.
    gc.disable()
    from .config.config_file import ConfigError
    from .process import startup
    from .process.home import HomeError
    from .process.main_loop import StartError

    root = resolve_home(home)
    try:
        startup.run_in_home(root, new_event_loop, tcp=tcp, log_format=log_format, verbose=verbose)
    except (HomeError, ConfigError, StartError) as error:
        print_to_stderr(f"crabtalkd: {error}")
        sys.exit(1)


@main.command()
@home_option
def reload(home: str | None) -> None:
    """Have the running daemon read configuration and agents anew.

    Turns in flight go on as they are.

    \b
    Example:
      crabtalkd reload
    """
    from .process.client_commands import reload_daemon

    with exit_on_errors(*list_daemon_errors()):
        problems = asyncio.run(reload_daemon(resolve_home(home)))
    for problem in problems:
        print_to_stderr(f"crabtalkd: {problem}")
    print_to_stderr("reloaded" if not problems else "reloaded, but for what is said above")


@main.command()
@home_option
def stop(home: str | None) -> None:
    """Stop the running daemon, and wait until it has ended. Nothing that was kept is lost.

    \b
    Example:
      crabtalkd stop
    """
    from .process.stop_command import StopError, stop_daemon

    root = resolve_home(home)
    with exit_on_errors(StopError):
        pid = stop_daemon(root)
    print_to_stderr(f"no daemon runs in {root}" if pid is None else f"stopped (process {pid})")


@main.command()
@home_option
@click.option("--json", "in_json", is_flag=True, help="One JSON document on standard output.")
def status(home: str | None, in_json: bool) -> None:
    """Say whether a daemon runs, and how it is. Exits with 1 when none does.

    \b
    Examples:
      crabtalkd status
      crabtalkd status --json
    """
    from .process.client_commands import describe_status

    root = resolve_home(home)
    with exit_on_errors(*list_daemon_errors()):
        click.echo(asyncio.run(describe_status(root, in_json)))


@main.command()
@home_option
@click.option("--from", "source", required=True, metavar="URL", help="Where it is now.")
@click.option("--to", "target", required=True, metavar="URL", help="Where it is to be, too.")
@click.option("--json", "in_json", is_flag=True, help="One JSON document on standard output.")
def migrate(home: str | None, source: str, target: str, in_json: bool) -> None:
    """Copy all that is kept from files into a database, or back.

    URL is file: for those in the home, or postgresql://HOST/DATABASE. Conversations, agents,
    memories and subscriptions are copied and then compared; nothing is removed. No daemon may run
    meanwhile. What was interrupted can be run again. Exits with 1 when both are not the same.

    \b
    Examples:
      crabtalkd migrate --from file: --to postgresql://db.example/crabtalk
      crabtalkd migrate --from postgresql://db.example/crabtalk --to file: --home /srv/crab
    """
    from crabtalk.memory import MemoryStoreError
    from crabtalk.storage import StorageError

    from .migrate import command
    from .migrate.migration import MigrationError
    from .process.home import HomeError

    root = resolve_home(home)
    command.check_urls(source, target, root)
    try:
        with (
            exit_on_errors(MigrationError, HomeError, StorageError, MemoryStoreError),
            asyncio.Runner(loop_factory=new_event_loop) as runner,
        ):
            outcomes = runner.run(command.run_migration(root, source, target))
    except KeyboardInterrupt:
        print_to_stderr("crabtalkd: interrupted; run it again to go on")
        sys.exit(130)
    click.echo(command.encode_outcomes(outcomes) if in_json else command.format_outcomes(outcomes))
    if not all(outcome.is_same for outcome in outcomes):
        print_to_stderr(
            "crabtalkd: both are not the same; nothing was removed, so look at what differs"
        )
        sys.exit(1)
    print_to_stderr(command.format_advice(root, target))


@main.command()
@home_option
@click.option("--json", "in_json", is_flag=True, help="One JSON document on standard output.")
def check(home: str | None, in_json: bool) -> None:
    """Say whether a daemon can use config.toml as it is. Exits with 1 when it cannot.

    Starts nothing. Words that mean nothing there are named too, and are no failure.

    \b
    Examples:
      crabtalkd check
      crabtalkd check --json
    """
    from .config.check_command import check_config_file

    path = resolve_home(home) / "config.toml"
    problem, ignored = check_config_file(path)
    if in_json:
        import json

        click.echo(json.dumps({"path": str(path), "problem": problem, "ignored": ignored}))
    else:
        for sentence in (*ignored, *([problem] if problem else [])):
            print_to_stderr(f"crabtalkd: {sentence}")
        if not problem:
            print_to_stderr(f"{path} can be used")
    sys.exit(1 if problem else 0)


@main.command()
@home_option
@click.option("--seconds", type=click.FloatRange(min=0), help="Stop looking after so long.")
@click.option("--json", "in_json", is_flag=True, help="One JSON document on standard output.")
def verify(home: str | None, seconds: float | None, in_json: bool) -> None:
    """Find damaged records in session logs and memories. Exits with 1 when there are any.

    Starts nothing and changes nothing; a daemon may be running.

    \b
    Examples:
      crabtalkd verify
      crabtalkd verify --json --seconds 10
    """
    from .process.verify_command import encode_report, format_report, verify_home

    report = verify_home(resolve_home(home), seconds)
    click.echo(encode_report(report) if in_json else format_report(report))
    sys.exit(1 if report.damage else 0)


@main.command()
@home_option
@click.option("--agent", default="", help="Only this agent.")
@click.option("--sender", default="", help="Only this sender.")
@click.option("--json", "in_json", is_flag=True, help="One JSON object a line.")
def events(home: str | None, agent: str, sender: str, in_json: bool) -> None:
    """Show what agents do, as they do it, until Ctrl+C.

    \b
    Examples:
      crabtalkd events
      crabtalkd events --agent crab --json
    """
    from .process.client_commands import print_events

    with exit_on_errors(*list_daemon_errors()), suppress(KeyboardInterrupt):
        asyncio.run(print_events(resolve_home(home), agent, sender, in_json))


@main.command()
@home_option
@click.option("--json", "in_json", is_flag=True, help="One JSON document on standard output.")
def models(home: str | None, in_json: bool) -> None:
    """List the models that can be used, and why others cannot.

    \b
    Examples:
      crabtalkd models
      crabtalkd models --json
    """
    from .config.models_command import format_providers, list_providers, to_json_document

    root = resolve_home(home)
    with exit_on_errors(*list_model_errors()):
        rows, default = asyncio.run(
            list_providers(read_configuration(root), root / MODELS_DIRECTORY)
        )
    if in_json:
        import json

        click.echo(json.dumps(to_json_document(rows, default)))
    else:
        click.echo(format_providers(rows, default))


@main.group()
def model() -> None:
    """The tiny model that needs no key and no network."""


@model.command("install")
@home_option
@click.option("--if-needed", is_flag=True, help="Only when nothing else could answer.")
def model_install(home: str | None, if_needed: bool) -> None:
    """Fetch the local model (127 MB) into the home.

    It chats, offline and without a key; it is far too small to act as an agent. What was fetched
    before an interruption is not fetched again.

    \b
    Example:
      crabtalkd model install
    """
    from crabtalk.model.local.download import InstallError
    from crabtalk.model.local.install import install_local_model, is_installed

    from .config.progress_bar import DownloadProgress

    root = resolve_home(home)
    if is_installed(root / MODELS_DIRECTORY):
        if not if_needed:
            print_to_stderr(f"the local model is in {root / MODELS_DIRECTORY} already")
        return
    with exit_on_errors(*list_model_errors()):
        if if_needed and asyncio.run(has_provider(root)):
            return
    try:
        with DownloadProgress() as progress:
            install_local_model(root / MODELS_DIRECTORY, progress.update)
    except InstallError as error:
        print_to_stderr(f"crabtalkd: {error}")
        if not if_needed:
            sys.exit(1)
    else:
        print_to_stderr(f"the local model is in {root / MODELS_DIRECTORY}")
        reload_running_daemon(root)


@main.command()
@home_option
@click.option(
    "--kind", type=click.Choice(PROVIDER_KINDS), help="The provider's kind; asked for if absent."
)
@click.option("--base-url", help="Where it is, if not where its vendor is.")
@click.option("--api-key", help="Its key, or ${VAR} to read it from the environment.")
@click.option("--model", "chosen", help="The model to use.")
def setup(
    home: str | None,
    kind: str | None,
    base_url: str | None,
    api_key: str | None,
    chosen: str | None,
) -> None:
    """Choose a model and write it into config.toml.

    Asks what it needs to know, on a terminal; takes everything from options otherwise.

    \b
    Examples:
      crabtalkd setup
      crabtalkd setup --kind anthropic --api-key '${ANTHROPIC_API_KEY}' --model claude-sonnet-5
    """
    from .config.setup_wizard import SetupWizard

    root = resolve_home(home)
    with exit_on_errors(*list_model_errors()):
        document = read_configuration(root)
        wizard = SetupWizard(root, document, kind, base_url, api_key, chosen)
        if kind is None and not sys.stdin.isatty():
            raise click.UsageError("without a terminal, say --kind and what goes with it")
        summary = wizard.run()
    print_to_stderr(summary)
    reload_running_daemon(root)


def reload_running_daemon(root: Path) -> None:
    """Have a running daemon use the new settings. If none runs, or it fails to, the next one that
    starts will use them."""
    from crabtalk.client import CannotConnectError, ConnectionClosedError, ServerError

    from .process.client_commands import reload_daemon

    try:
        problems = asyncio.run(reload_daemon(root))
    except CannotConnectError:
        return
    except (ConnectionClosedError, ServerError, OSError) as error:
        print_to_stderr(f"crabtalkd: the daemon that runs has not taken it up: {error}")
        return
    for problem in problems:
        print_to_stderr(f"crabtalkd: {problem}")
    suffix = ", but for what is said above" if problems else ""
    print_to_stderr(f"the daemon that runs has taken it up{suffix}")


async def has_provider(root: Path) -> bool:
    """Whether a provider is configured, or one could be found."""
    from crabtalk.model import open_registry

    registry = await open_registry(
        read_configuration(root), models_directory=root / MODELS_DIRECTORY
    )
    try:
        return bool(registry.entries)
    finally:
        await registry.close()


def resolve_home(option: str | None) -> Path:
    if option == "":
        raise click.BadParameter(
            "it is empty; leave it out, or name a directory", param_hint="home"
        )
    if option is not None:
        return Path(option).expanduser().absolute()
    from crabtalk.transport import default_home

    return default_home()


def read_configuration(root: Path) -> dict[str, Any]:
    from .config.config_file import read_config_file

    return read_config_file(root / "config.toml")


@contextmanager
def exit_on_errors(*expected: type[Exception]) -> Iterator[None]:
    """Print an expected error as one sentence and exit with status 1."""
    kinds: tuple[type[Exception], ...] = (*expected, OSError)
    try:
        yield
    except BrokenPipeError:  # the reader of our output has closed it
        # Discard buffered output, which would fail when the interpreter flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except kinds as error:
        print_to_stderr(f"crabtalkd: {error}")
        sys.exit(1)


def list_daemon_errors() -> tuple[type[Exception], ...]:
    """Errors of asking a daemon. Imported late, for commands that do not ask one."""
    from crabtalk.client import CannotConnectError, ConnectionClosedError, ServerError

    return CannotConnectError, ConnectionClosedError, ServerError


def list_model_errors() -> tuple[type[Exception], ...]:
    """Errors of looking for models. Imported late, for commands that do not look for any."""
    from crabtalk.model import ApiError, ProviderSettingsError
    from crabtalk.model.local.download import InstallError

    from .config.config_file import ConfigError

    return ApiError, ConfigError, InstallError, ProviderSettingsError


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # where uvloop has no build, the standard loop does
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def print_to_stderr(sentence: str) -> None:
    click.echo(sentence, err=True)
