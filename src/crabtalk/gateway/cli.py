"""The commands all gateway programs have: run, setup, pair and check. See GatewayProgram.

main = build_gateway_cli(
    GatewayProgram("telegram", "Telegram", open_telegram, fetch_bot_name), __version__
)
"""

import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    CommandGroup,
    has_terminal,
    home_option,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    verbose_option,
)

if TYPE_CHECKING:
    from .chat_service import ChatService
    from .settings import GatewaySettings

# A token is one line; longer input is some other file.
MAX_TOKEN_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class GatewayProgram:
    """One gateway program. Its modules are imported only when a function here is called.

    `open_service` opens the service with the settings and the gateway's own directory, where it
    may store a cursor. `fetch_identity` asks the service for our name, and raises ChatServiceError
    or GatewayError. `extra_settings` are the program's own settings with their defaults.
    """

    name: str  # telegram
    title: str  # Telegram
    open_service: "Callable[[GatewaySettings, Path], AbstractAsyncContextManager[ChatService]]"
    fetch_identity: "Callable[[GatewaySettings], Awaitable[str]]"
    extra_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command_name(self) -> str:
        return f"crabtalk-{self.name}"

    def settings_path(self, home: Path) -> Path:
        return home / "config" / f"{self.name}.toml"

    def load_settings(self, home: Path) -> "GatewaySettings":
        from .settings import load_settings

        return load_settings(self.settings_path(home), self.extra_settings)


class GatewayCommandGroup(CommandGroup):
    def explain_error(self, error: Exception) -> str | None:
        from crabtalk.service import ComponentError

        from .chat_service import ChatServiceError
        from .errors import GatewayError

        known = (ComponentError, GatewayError, ChatServiceError, OSError)
        return str(error) if isinstance(error, known) else None


def build_gateway_cli(program: GatewayProgram, version: str, *, setup: bool = True) -> click.Group:
    """The command group of a gateway program. Without `setup`, the program adds its own."""
    name = program.command_name
    examples = f"\b\nExamples:\n  {name} setup\n  {name} pair\n  {name} run\n"

    @click.group(
        name,
        cls=GatewayCommandGroup,
        epilog=examples,
        help=f"Has people talk to agents in {program.title}.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.version_option(version, prog_name=name, message="%(prog)s %(version)s")
    def main() -> None:
        pass

    main.add_command(build_run_command(program))
    if setup:
        main.add_command(build_setup_command(program))
    main.add_command(build_pair_command(program))
    main.add_command(build_check_command(program))
    return main


def build_run_command(program: GatewayProgram) -> click.Command:
    @click.command("run", help=RUN_HELP.format(title=program.title, command=program.command_name))
    @home_option
    @verbose_option
    def run(home: Path, verbose: bool) -> None:
        import asyncio

        from crabtalk.service import ComponentPaths, start_log
        from crabtalk.service.mcp_runner import get_event_loop_factory
        from crabtalk.transport import remove_stale_temporary_files

        settings = program.load_settings(home)
        require_token(program, settings)
        paths = ComponentPaths(home, program.name)
        with paths.hold_lock():
            start_log(paths.log_path, verbose=verbose)
            remove_stale_temporary_files(home / "config")
            if not settings.allowed_users:
                announce_pairing(program, home)
            with asyncio.Runner(loop_factory=get_event_loop_factory()) as runner:
                runner.run(run_until_stopped(program, home, settings))

    return run


RUN_HELP = """Run in the foreground until Ctrl+C or SIGTERM.

The log is on standard error and in logs/. What people wrote meanwhile is answered when it runs
again.

\b
Example:
  {command} run
"""


async def run_until_stopped(
    program: GatewayProgram, home: Path, settings: "GatewaySettings"
) -> None:
    """Open the service and run its gateway until SIGINT or SIGTERM. Raises GatewayError."""
    import asyncio

    from .gateway import Gateway

    async def serve() -> None:
        directory = home / program.name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with program.open_service(settings, directory) as service:
            await Gateway(home, service, settings).run()

    running = asyncio.ensure_future(serve())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


def announce_pairing(program: GatewayProgram, home: Path) -> None:
    """No user is allowed yet: print a pairing code on a terminal, else say which command does."""
    if has_terminal():
        print_pairing_code(program, home)
    else:
        print_to_stderr(
            f"{program.command_name}: allowed_users is empty, so no user is served; "
            f"run `{program.command_name} pair`"
        )


def print_pairing_code(program: GatewayProgram, home: Path) -> None:
    from .pairing import LIFETIME_SECONDS, PairingCode

    code = PairingCode(home, program.name).create_code()
    print_to_stderr(
        f"Send this code to your bot in {program.title} "
        f"within {LIFETIME_SECONDS / 60:.0f} minutes, and it serves you from then on: {code}"
    )


def build_pair_command(program: GatewayProgram) -> click.Command:
    @click.command("pair", help=PAIR_HELP.format(title=program.title, command=program.command_name))
    @home_option
    @json_option
    def pair(home: Path, in_json: bool) -> None:
        from .pairing import LIFETIME_SECONDS, PairingCode

        if in_json:
            code = PairingCode(home, program.name).create_code()
            print_json({"code": code, "seconds": LIFETIME_SECONDS})
        else:
            print_pairing_code(program, home)

    return pair


PAIR_HELP = """Print a code that lets one person in.

The first person who sends it to the bot in {title} is on the allow-list. It works once, for ten
minutes, while the gateway runs.

\b
Example:
  {command} pair
"""


def build_setup_command(program: GatewayProgram) -> click.Command:
    @click.command(
        "setup", help=SETUP_HELP.format(title=program.title, command=program.command_name)
    )
    @home_option
    @click.option("--token-stdin", is_flag=True, help="Read the token from standard input.")
    @click.option("--base-url", metavar="URL", help="Of a server of your own.")
    @click.option("--agent", metavar="NAME", help="Who answers.  [default: crab]")
    @click.option("--allow", multiple=True, metavar="ID", help="A person to serve; repeatable.")
    def setup(
        home: Path,
        token_stdin: bool,
        base_url: str | None,
        agent: str | None,
        allow: tuple[str, ...],
    ) -> None:
        token = read_token(program, from_stdin=token_stdin)
        verify_and_write_settings(program, home, token, base_url=base_url, agent=agent, allow=allow)

    return setup


SETUP_HELP = """Ask for the token, test it, and write the settings.

\b
Examples:
  {command} setup
  {command} setup --token-stdin --allow 12345 < token.txt
"""


def read_token(program: GatewayProgram, *, from_stdin: bool) -> str:
    if from_stdin:
        token = sys.stdin.read(MAX_TOKEN_LENGTH).strip()
    elif has_terminal():
        token = click.prompt(f"Token of {program.title}", hide_input=True, err=True).strip()
    else:
        raise click.UsageError("there is no terminal to ask on; use --token-stdin")
    if not token or any(character.isspace() for character in token):
        raise click.UsageError("that is no token: one word, as the service gave it")
    return token


def verify_and_write_settings(
    program: GatewayProgram,
    home: Path,
    token: str,
    *,
    base_url: str | None = None,
    agent: str | None = None,
    allow: tuple[str, ...] = (),
) -> None:
    """Write the settings, if the service accepts the token."""
    import asyncio
    from dataclasses import replace

    from .settings import allow_user, write_settings

    path = program.settings_path(home)
    changes: dict[str, Any] = {"token": token}
    if base_url is not None:
        changes["base_url"] = base_url
    if agent is not None:
        changes["agent"] = agent
    settings = program.load_settings(home)
    if agent is not None and settings.agents and agent not in settings.agents:
        raise click.UsageError(f"agents in {path} does not list {agent!r}; add it there first")
    tested = replace(settings, token=token, base_url=(base_url or settings.base_url).rstrip("/"))
    identity = asyncio.run(fetch_identity(program, tested))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_settings(path, changes)
    for person in allow:
        allow_user(path, person)
    print_output(f"{program.title} knows us as {identity}; {path} is written")
    if not program.load_settings(home).allowed_users:
        print_output(
            f"No user is served yet: start `{program.command_name} run`, "
            f"then `{program.command_name} pair`"
        )


def build_check_command(program: GatewayProgram) -> click.Command:
    @click.command("check", help=CHECK_HELP.format(command=program.command_name))
    @home_option
    @json_option
    def check(home: Path, in_json: bool) -> None:
        import asyncio

        settings = program.load_settings(home)
        identity = asyncio.run(fetch_identity(program, settings))
        if in_json:
            print_json({"name": identity, "allowed_users": list(settings.allowed_users)})
        else:
            print_output(
                f"{program.title} knows us as {identity}; {len(settings.allowed_users)} are served"
            )

    return check


CHECK_HELP = """Say whether the settings are right and the service takes the token.

\b
Example:
  {command} check
"""


async def fetch_identity(program: GatewayProgram, settings: "GatewaySettings") -> str:
    """Our name at the service. Raises GatewayError, or what the service raises."""
    require_token(program, settings)
    return await program.fetch_identity(settings)


def require_token(program: GatewayProgram, settings: "GatewaySettings") -> None:
    from .errors import GatewayError

    if not settings.token:
        raise GatewayError(f"there is no token; run `{program.command_name} setup`")
