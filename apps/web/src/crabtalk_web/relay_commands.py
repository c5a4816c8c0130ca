"""Commands for the operator of a relay: its accounts and its invites.

They work on the relay's folder, whether it is running or not.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from crabtalk.service.command_line import (
    format_table,
    home_option,
    json_option,
    print_json,
    print_output,
)

SECONDS_BY_UNIT = {"m": 60, "h": 3600, "d": 86_400}


def data_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        help="The relay's folder, where it is not web/relay in the home.",
    )(home_option(command))


def find_relay_folder(home: Path, data: Path | None) -> Path:
    """Also accept --home before the subcommand: `crabtalk-web relay --home DIR accounts list`."""
    from .gateway.web_folder import WebFolder

    context = click.get_current_context()
    while context.parent is not None:
        if context.get_parameter_source("home") is ParameterSource.COMMANDLINE:
            home = context.params["home"]
            break
        context = context.parent
    return data or WebFolder(home).relay_folder


@click.group()
def accounts() -> None:
    """Accounts of the relay: list them, and remove one.

    \b
    Example:
      crabtalk-web relay accounts list
    """


@accounts.command("list")
@data_option
@json_option
def list_accounts(home: Path, data: Path | None, in_json: bool) -> None:
    """List accounts with what they take up.

    \b
    Example:
      crabtalk-web relay accounts list
    """
    from .relay import administration

    with administration.open_database(find_relay_folder(home, data)) as db:
        account_list = administration.list_accounts(db)
    if in_json:
        print_json({"accounts": account_list})
        return
    head = ["ID", "CREATED", "LAST SEEN", "SESSIONS", "MESSAGES", "BYTES"]
    rows = [
        [
            account["id"],
            format_time(account["createdAt"]),
            format_time(account["lastSeenAt"]),
            *(str(account[key]) for key in ("sessions", "messages", "bytes")),
        ]
        for account in account_list
    ]
    print_output(format_table([head, *rows]) if rows else "There are no accounts.")


@accounts.command("remove")
@click.argument("account")
@data_option
def remove_account(account: str, home: Path, data: Path | None) -> None:
    """Remove ACCOUNT with its sessions and files, and shut its devices out.

    A relay that is running closes their connections within a second. It cannot be undone.

    \b
    Example:
      crabtalk-web relay accounts remove cmha2j1x0
    """
    from .relay import administration
    from .relay.errors import RelayConfigError

    folder = find_relay_folder(home, data)
    with administration.open_database(folder) as db:
        if not administration.remove_account(db, folder, account):
            raise RelayConfigError(
                f"there is no account {account}; `crabtalk-web relay accounts list` has their ids"
            )
    print_output("It is removed.")


@click.group()
def invites() -> None:
    """Invites let people make an account: create, list, revoke them.

    \b
    Example:
      crabtalk-web relay invites create
    """


@invites.command("create")
@click.option("--uses", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option("--expires", default="7d", show_default=True, help="Such as 30m, 12h or 7d.")
@data_option
@json_option
def create_invite(uses: int, expires: str, home: Path, data: Path | None, in_json: bool) -> None:
    """Create an invite and print its code, which is told once.

    \b
    Examples:
      crabtalk-web relay invites create
      crabtalk-web relay invites create --uses 5 --expires 12h
    """
    from .relay import administration, registration

    expires_at = administration.compute_invite_expiry(parse_duration(expires))
    with administration.open_database(find_relay_folder(home, data)) as db:
        code = registration.create_invite(db, uses, expires_at)
    if in_json:
        print_json({"invite": code, "uses": uses, "expiresAt": expires_at})
        return
    print_output(code)
    people = "one account" if uses == 1 else f"{uses} accounts"
    print_output(f"It is for {people}, until {format_time(expires_at)}.")


@invites.command("list")
@data_option
@json_option
def list_invites(home: Path, data: Path | None, in_json: bool) -> None:
    """List invites that can still be used, without their codes.

    \b
    Example:
      crabtalk-web relay invites list
    """
    from .relay import administration, registration

    with administration.open_database(find_relay_folder(home, data)) as db:
        invite_list = registration.list_invites(db)
    if in_json:
        print_json({"invites": invite_list})
        return
    head = ["ID", "USES LEFT", "USED", "CREATED", "EXPIRES"]
    rows = [format_invite(invite) for invite in invite_list]
    print_output(format_table([head, *rows]) if rows else "There are no invites.")


@invites.command("revoke")
@click.argument("invite")
@data_option
def revoke_invite(invite: str, home: Path, data: Path | None) -> None:
    """Revoke INVITE, by its id. Accounts that were made with it stay.

    \b
    Example:
      crabtalk-web relay invites revoke cmha2j1x0
    """
    from .relay import administration, registration
    from .relay.errors import RelayConfigError

    with administration.open_database(find_relay_folder(home, data)) as db:
        if not registration.revoke_invite(db, invite):
            raise RelayConfigError(
                f"there is no invite {invite}; `crabtalk-web relay invites list` has their ids"
            )
    print_output("It is revoked.")


def format_invite(invite: dict[str, Any]) -> list[str]:
    times = [format_time(invite["createdAt"]), format_time(invite["expiresAt"])]
    return [invite["id"], str(invite["usesLeft"]), str(invite["used"]), *times]


def format_time(milliseconds: int | None) -> str:
    if not milliseconds:
        return "never"
    when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return when.strftime("%Y-%m-%d %H:%M UTC")


def parse_duration(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6})([mhd])", text)
    if match is None or not int(match[1]):
        raise click.BadParameter(
            "write a number with m, h or d, such as 12h", param_hint="--expires"
        )
    return float(int(match[1]) * SECONDS_BY_UNIT[match[2]])
