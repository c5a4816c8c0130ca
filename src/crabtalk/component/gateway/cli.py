"""What the command lines of gateways share: run, setup, pair and check, for a Program of their own.

main = gateway_commands(Program("telegram", "Telegram", open_telegram, test_token), __version__)
"""

import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import (
    Commands,
    document,
    has_terminal,
    home_option,
    json_option,
    say,
    show,
    verbose_option,
)

if TYPE_CHECKING:
    from .service import Service
    from .settings import Settings

# A token is a line; what is longer is some other file.
LONGEST_TOKEN = 4096


@dataclass(frozen=True, slots=True)
class Program:
    """What one gateway has of its own. Nothing of it is imported before it is called.

    `open` makes the service from the settings and the gateway's own directory, where it may keep
    a cursor; `test` asks the service who we are, and raises ServiceError or GatewayError. `extra`
    are settings of its own, with their defaults.
    """

    name: str  # telegram
    title: str  # Telegram
    open: "Callable[[Settings, Path], AbstractAsyncContextManager[Service]]"
    test: "Callable[[Settings], Awaitable[str]]"
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        return f"crabtalk-{self.name}"

    def settings_path(self, home: Path) -> Path:
        return home / "config" / f"{self.name}.toml"

    def settings(self, home: Path) -> "Settings":
        from .settings import load_settings

        return load_settings(self.settings_path(home), self.extra)


class GatewayCommands(Commands):
    def complaint(self, error: Exception) -> str | None:
        from crabtalk.component import ComponentError

        from .errors import GatewayError
        from .service import ServiceError

        known = (ComponentError, GatewayError, ServiceError, OSError)
        return str(error) if isinstance(error, known) else None


def gateway_commands(program: Program, version: str, *, setup: bool = True) -> click.Group:
    """The group of a gateway's program; without `setup` it brings one of its own."""
    name = program.command
    examples = f"\b\nExamples:\n  {name} setup\n  {name} pair\n  {name} run\n"

    @click.group(
        name,
        cls=GatewayCommands,
        epilog=examples,
        help=f"Has people talk to agents in {program.title}.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.version_option(version, prog_name=name, message="%(prog)s %(version)s")
    def main() -> None:
        pass

    main.add_command(run_command(program))
    if setup:
        main.add_command(setup_command(program))
    main.add_command(pair_command(program))
    main.add_command(check_command(program))
    return main


def run_command(program: Program) -> click.Command:
    @click.command("run", help=RUN.format(title=program.title, command=program.command))
    @home_option
    @verbose_option
    def run(home: Path, verbose: bool) -> None:
        import asyncio

        from crabtalk.component import Place, start_log
        from crabtalk.component.running import event_loop_factory
        from crabtalk.transport import remove_leftovers

        settings = program.settings(home)
        must_have_token(program, settings)
        place = Place(home, program.name)
        with place.taken():
            start_log(place.log, verbose=verbose)
            remove_leftovers(home / "config")
            if not settings.allowed_users:
                greet_nobody(program, home)
            with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
                runner.run(run_until_stopped(program, home, settings))

    return run


RUN = """Run in the foreground until Ctrl+C or SIGTERM.

The log is on standard error and in logs/. What people wrote meanwhile is answered when it runs
again.

\b
Example:
  {command} run
"""


async def run_until_stopped(program: Program, home: Path, settings: "Settings") -> None:
    """Opens the service and runs its gateway. Raises GatewayError."""
    import asyncio

    from .gateway import Gateway

    async def serve() -> None:
        own = home / program.name
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with program.open(settings, own) as service:
            await Gateway(home, service, settings).run()

    running = asyncio.ensure_future(serve())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


def greet_nobody(program: Program, home: Path) -> None:
    """Nobody is served yet: on a terminal, the code to send is right here."""
    if has_terminal():
        print_code(program, home)
    else:
        say(
            f"{program.command}: allowed_users is empty, so nobody is served; "
            f"run `{program.command} pair`"
        )


def print_code(program: Program, home: Path) -> None:
    from .pairing import SECONDS, Pairing

    code = Pairing(home, program.name).make()
    say(
        f"Send this code to your bot in {program.title} within {SECONDS / 60:.0f} minutes, and it "
        f"serves you from then on: {code}"
    )


def pair_command(program: Program) -> click.Command:
    @click.command("pair", help=PAIR.format(title=program.title, command=program.command))
    @home_option
    @json_option
    def pair(home: Path, in_json: bool) -> None:
        from .pairing import SECONDS, Pairing

        if in_json:
            code = Pairing(home, program.name).make()
            document({"code": code, "seconds": SECONDS})
        else:
            print_code(program, home)

    return pair


PAIR = """Print a code that lets one person in.

Whoever sends it to the bot in {title} first is on the allow-list. It works once, for ten minutes,
while the gateway runs.

\b
Example:
  {command} pair
"""


def setup_command(program: Program) -> click.Command:
    @click.command("setup", help=SETUP.format(title=program.title, command=program.command))
    @home_option
    @click.option("--token-stdin", is_flag=True, help="Read the token from standard input.")
    @click.option("--base-url", metavar="URL", help="Of a server of your own.")
    @click.option("--agent", metavar="NAME", help="Who answers.  [default: crab]")
    @click.option("--allow", multiple=True, metavar="ID", help="Somebody to serve; repeatable.")
    def setup(
        home: Path,
        token_stdin: bool,
        base_url: str | None,
        agent: str | None,
        allow: tuple[str, ...],
    ) -> None:
        token = read_token(program, from_stdin=token_stdin)
        write_tested(program, home, token, base_url=base_url, agent=agent, allow=allow)

    return setup


SETUP = """Ask for the token, test it, and write the settings.

\b
Examples:
  {command} setup
  {command} setup --token-stdin --allow 12345 < token.txt
"""


def read_token(program: Program, *, from_stdin: bool) -> str:
    if from_stdin:
        token = sys.stdin.read(LONGEST_TOKEN).strip()
    elif has_terminal():
        token = click.prompt(f"Token of {program.title}", hide_input=True, err=True).strip()
    else:
        raise click.UsageError("there is no terminal to ask on; use --token-stdin")
    if not token or any(character.isspace() for character in token):
        raise click.UsageError("that is no token: one word, as the service gave it")
    return token


def write_tested(
    program: Program,
    home: Path,
    token: str,
    *,
    base_url: str | None = None,
    agent: str | None = None,
    allow: tuple[str, ...] = (),
) -> None:
    """Asks the service whether it takes the token, and writes the settings if it does."""
    import asyncio
    from dataclasses import replace

    from .settings import allow as allowed
    from .settings import write_settings

    path = program.settings_path(home)
    changes: dict[str, Any] = {"token": token}
    if base_url is not None:
        changes["base_url"] = base_url
    if agent is not None:
        changes["agent"] = agent
    settings = program.settings(home)
    if agent is not None and settings.agents and agent not in settings.agents:
        raise click.UsageError(f"agents in {path} does not list {agent!r}; add it there first")
    tested = replace(settings, token=token, base_url=(base_url or settings.base_url).rstrip("/"))
    who = asyncio.run(asked(program, tested))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_settings(path, changes)
    for person in allow:
        allowed(path, person)
    show(f"{program.title} knows us as {who}; {path} is written")
    if not program.settings(home).allowed_users:
        show(f"Nobody is served yet: start `{program.command} run`, then `{program.command} pair`")


def check_command(program: Program) -> click.Command:
    @click.command("check", help=CHECK.format(command=program.command))
    @home_option
    @json_option
    def check(home: Path, in_json: bool) -> None:
        import asyncio

        settings = program.settings(home)
        who = asyncio.run(asked(program, settings))
        if in_json:
            document({"name": who, "allowed_users": list(settings.allowed_users)})
        else:
            show(f"{program.title} knows us as {who}; {len(settings.allowed_users)} are served")

    return check


CHECK = """Say whether the settings are right and the service takes the token.

\b
Example:
  {command} check
"""


async def asked(program: Program, settings: "Settings") -> str:
    """Who we are to the service. Raises GatewayError, or what the service raises."""
    must_have_token(program, settings)
    return await program.test(settings)


def must_have_token(program: Program, settings: "Settings") -> None:
    from .errors import GatewayError

    if not settings.token:
        raise GatewayError(f"there is no token; run `{program.command} setup`")
