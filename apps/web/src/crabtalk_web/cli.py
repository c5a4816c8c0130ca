"""The crabtalk-web command: its subcommands, and the exit of each of them."""

import asyncio
from pathlib import Path
from typing import Any

import click

from crabtalk.service.command_line import (
    CommandGroup,
    format_table,
    home_option,
    json_option,
    print_json,
    print_output,
    to_one_line,
    verbose_option,
)

from . import __version__
from .account import load_settings, pair_machine, request_relay
from .foreground import (
    build_relay_config,
    run_in_foreground,
    run_relay,
    run_relay_and_gateway,
    run_until_stopped,
)
from .relay_commands import accounts, invites

NAME = "crabtalk-web"
# The page calls itself this. It numbers its messages, which protects them from replay.
PAGE_CLIENT_PREFIX = "crabtalk-page/"
EXAMPLES = """\b
Examples:
  crabtalk-web up
  crabtalk-web tap crab
  crabtalk-web pair https://relay.example.org && crabtalk-web gateway
"""


class WebCommandGroup(CommandGroup):
    def explain_error(self, error: Exception) -> str | None:
        from crabtalk.service import ComponentError

        from .gateway.errors import (
            DAEMON_AWAY_ERRORS,
            RelayRefusedError,
            RelayUnavailableError,
            WebGatewayError,
        )
        from .relay.errors import RelayConfigError

        known = (
            ComponentError,
            WebGatewayError,
            RelayUnavailableError,
            RelayRefusedError,
            RelayConfigError,
        )
        if isinstance(error, ExceptionGroup):
            expected, _ = error.split((*known, *DAEMON_AWAY_ERRORS))
            return str(first_exception(expected)) if expected is not None else None
        return str(error) if isinstance(error, (*known, *DAEMON_AWAY_ERRORS)) else None


def first_exception(group: ExceptionGroup[Exception]) -> Exception:
    result: Exception = group
    while isinstance(result, ExceptionGroup):
        result = result.exceptions[0]
    return result


@click.group(
    NAME,
    cls=WebCommandGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
def main() -> None:
    """Your conversations on any screen, encrypted from end to end."""


@main.command()
@home_option
@verbose_option
def up(home: Path, verbose: bool) -> None:
    """Run gateway and relay together, and say how to open them.

    On this machine only, unless [relay] in config/web.toml has a TLS certificate and a host name.
    Prints a link until a device was let in, with a QR code where another device can reach it.

    \b
    Example:
      crabtalk-web up
    """
    run_in_foreground(home, verbose, run_relay_and_gateway(home), "web", "relay")


@main.command()
@click.argument("url")
@home_option
def pair(url: str, home: Path) -> None:
    """Pair this machine with an account at the relay at URL.

    Prints a link and its QR code, and waits until a device of the account has let it in.

    \b
    Example:
      crabtalk-web pair https://relay.example.org
    """
    from .gateway import WebGatewayError
    from .gateway.web_folder import WebFolder

    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
        raise WebGatewayError("a relay elsewhere is reached by https:// alone; correct the address")
    store = WebFolder(home)
    store.prepare()
    asyncio.run(pair_machine(store.credentials_file, url.rstrip("/")))


@main.command()
@home_option
@verbose_option
def gateway(home: Path, verbose: bool) -> None:
    """Run the gateway alone, for the relay it was paired with.

    \b
    Example:
      crabtalk-web gateway
    """
    from .gateway import WebGateway

    config, credentials = load_settings(home)
    run_in_foreground(home, verbose, WebGateway(home, credentials, config).run(), "web")


@main.group(invoke_without_command=True)
@home_option
@verbose_option
@click.option("--port", type=click.IntRange(0, 65535), help="Another than config/web.toml says.")
@click.option(
    "--registration",
    type=click.Choice(["open", "invite", "closed"]),
    help="Who may make an account here.",
)
@click.pass_context
def relay(
    context: click.Context,
    home: Path,
    verbose: bool,
    port: int | None,
    registration: str | None,
) -> None:
    """Run the relay alone, or manage its accounts and invites.

    It keeps what it cannot read. Where others can reach it, new accounts need an invite.

    \b
    Examples:
      crabtalk-web relay --port 3005
      crabtalk-web relay invites create
      crabtalk-web relay accounts list
    """
    from .gateway import load_config
    from .gateway.web_folder import WebFolder

    if context.invoked_subcommand is not None:
        return
    config = load_config(WebFolder(home).config_file)
    WebFolder(home).prepare()
    settings = build_relay_config(home, config, port, registration or "")
    run_in_foreground(home, verbose, run_relay(settings), "relay")


relay.add_command(accounts)
relay.add_command(invites)


@main.command()
@click.argument("agent")
@click.option("--sender", default="user", show_default=True, help="Whose conversation with it.")
@home_option
def tap(agent: str, sender: str, home: Path) -> None:
    """Print what happens in a conversation, as the envelopes of its session.

    One JSON object a line, in clear, until Ctrl+C. Needs neither a relay nor keys.

    \b
    Examples:
      crabtalk-web tap crab
      crabtalk-web tap crab --sender tg:12345 | jq .ev
    """
    asyncio.run(run_until_stopped(print_envelopes(home, agent, sender)))


async def print_envelopes(home: Path, agent: str, sender: str) -> None:
    from contextlib import aclosing

    from .envelope_feed import follow_envelopes as envelopes
    from .stream import encode_envelope

    async with aclosing(envelopes(home, agent, sender)) as result:
        async for envelope in result:
            click.echo(encode_envelope(envelope))


@main.command()
@click.argument("agent")
@home_option
def renew(agent: str, home: Path) -> None:
    """Begin a fresh session for the conversation with AGENT, with another key.

    The old one stays on your devices and says where it goes on; the conversation itself is as it
    was. Needs a gateway that runs.

    \b
    Example:
      crabtalk-web renew crab
    """
    from .gateway import request_renewal

    _, credentials = load_settings(home)
    print_output(f"It goes on in {asyncio.run(request_renewal(credentials, agent))}.")


@main.group()
def devices() -> None:
    """What is let into the account: list it, and take it out again."""


@devices.command("list")
@home_option
@json_option
def list_devices(home: Path, in_json: bool) -> None:
    """List the devices and machines that have a token.

    \b
    Example:
      crabtalk-web devices list
    """
    result = asyncio.run(request_relay(home, "GET", "/v1/devices")).get("devices", [])
    if in_json:
        print_json({"devices": result})
    elif result:
        rows = [
            [
                *(str(device.get(key) or "") for key in ("id", "kind", "client")),
                describe_protection(device),
            ]
            for device in result
        ]
        print_output(format_table([[to_one_line(cell) for cell in row] for row in rows]))


def describe_protection(device: dict[str, Any]) -> str:
    """Return a warning for a device that writes messages without a counter."""
    is_protected = str(device.get("client") or "").startswith(PAGE_CLIENT_PREFIX)
    if is_protected or device.get("kind") == "terminal":
        return ""
    return "writes without replay protection"


@devices.command()
@click.argument("device")
@home_option
def revoke(device: str, home: Path) -> None:
    """Take the token of DEVICE away. Its sockets are closed at once.

    \b
    Example:
      crabtalk-web devices revoke cm3k2j1x0
    """
    from urllib.parse import quote

    asyncio.run(request_relay(home, "DELETE", f"/v1/devices/{quote(device, safe='')}"))
    print_output("It is out.")


@main.command()
@home_option
@json_option
def status(home: Path, in_json: bool) -> None:
    """Say with which relay this machine is paired, and what waits to be sent.

    \b
    Example:
      crabtalk-web status
    """
    from .gateway import load_credentials
    from .gateway.web_folder import WebFolder
    from .status import read_status

    result = read_status(WebFolder(home), load_credentials(WebFolder(home).credentials_file))
    if in_json:
        print_json(result)
        return
    if not result["relay"]:
        print_output(
            "This machine is not paired; run `crabtalk-web up`, or `crabtalk-web pair URL`."
        )
        return
    print_output(
        f"Paired with {result['relay']}, {'running' if result['running'] else 'not running'}."
    )
    rows = [describe_conversation(conversation) for conversation in result["conversations"]]
    if rows:
        print_output(format_table(rows))


def describe_conversation(conversation: dict[str, Any]) -> list[str]:
    notes = []
    if conversation["refused"]:
        notes.append(f"{conversation['refused']} messages refused")
    if conversation["unprotected"]:
        names = ", ".join(to_one_line(name) for name in conversation["unprotected"])
        notes.append(f"written to without replay protection by {names}")
    return [
        to_one_line(conversation["agent"]),
        f"{conversation['unsent']} to send",
        "; ".join(notes),
    ]
