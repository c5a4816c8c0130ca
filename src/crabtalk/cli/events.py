"""crabtalk events: subscribe agents to events, publish events, and watch what agents do."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    format_table,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .errors import CommandError
from .event_formatting import EventFormatter, event_to_json
from .memory_sources import explain_not_found
from .options import connect_daemon, home_option, inherit_from_root

if TYPE_CHECKING:
    from crabtalk.protocol import wire

DEFAULT_SENDER = "user"  # subscriptions made at the terminal have the owner's rights


@click.group()
def events() -> None:
    """What sets agents off, and what they do.

    \b
    Examples:
      crabtalk events subscribe agent:scout:done crab
      crabtalk events list
      crabtalk events publish rss:fetch "Crabs found on the moon"
      crabtalk events watch --agent crab
    """


@events.command("list")
@home_option
@json_option
def events_list(home: Path | None, in_json: bool) -> None:
    """List which agent is set off by what.

    \b
    Examples:
      crabtalk events list
      crabtalk events list --json
    """
    with connect_daemon(home) as client:
        subscriptions = client.list_subscriptions().subscriptions
    if in_json:
        print_json(
            {
                "subscriptions": [
                    subscription_to_json(subscription) for subscription in subscriptions
                ]
            }
        )
    elif subscriptions:
        print_output(
            format_table([format_subscription(subscription) for subscription in subscriptions])
        )
    else:
        print_to_stderr("there are no subscriptions; `crabtalk events subscribe` makes one")


@events.command("subscribe")
@click.argument("source")
@click.argument("agent")
@click.option("--once", is_flag=True, help="The first time only.")
@click.option(
    "--sender",
    callback=inherit_from_root,
    metavar="NAME",
    help=f"Whose rights the runs have  [default: {DEFAULT_SENDER}]",
)
@home_option
@json_option
def events_subscribe(
    source: str, agent: str, once: bool, sender: str | None, home: Path | None, in_json: bool
) -> None:
    """Have AGENT run whenever SOURCE is published.

    The daemon publishes agent:NAME:done and agent:NAME:failed, programs whatever they like.

    \b
    Examples:
      crabtalk events subscribe agent:scout:done crab
      crabtalk events subscribe rss:fetch scout --once
    """
    with connect_daemon(home) as client, explain_not_found("`crabtalk agents list` has the names"):
        subscription = client.subscribe_event(
            source, agent, once=once, sender=sender or DEFAULT_SENDER
        )
    if in_json:
        print_json(subscription_to_json(subscription))
    else:
        print_output(format_table([format_subscription(subscription)]))


@events.command("remove")
@click.argument("number", metavar="ID", type=click.IntRange(0, 2**64 - 1))
@home_option
def events_remove(number: int, home: Path | None) -> None:
    """Remove a subscription. What it has set off by then goes on.

    \b
    Example:
      crabtalk events remove 3
    """
    with connect_daemon(home) as client, explain_not_found("`crabtalk events list` has the ids"):
        client.unsubscribe_event(number)
    print_to_stderr(f"removed {number}")


@events.command("publish")
@click.argument("source")
@click.argument("payload", required=False)
@home_option
def events_publish(source: str, payload: str | None, home: Path | None) -> None:
    """Publish SOURCE, and with it PAYLOAD or what comes on standard input.

    Does not wait for the agents it sets off.

    \b
    Examples:
      crabtalk events publish rss:fetch "Crabs found on the moon"
      curl -s https://example.org/feed | crabtalk events publish rss:fetch
    """
    text = read_payload() if payload is None else payload
    with connect_daemon(home) as client:
        client.publish_event(source, text)
    print_to_stderr(f"published {to_one_line(source)}")


@events.command("watch")
@click.option("--agent", help="Only this agent.")
@click.option("--sender", help="Only this sender.")
@home_option
@click.option("--json", "in_json", is_flag=True, help="One JSON object a line.")
def events_watch(agent: str | None, sender: str | None, home: Path | None, in_json: bool) -> None:
    """Show what agents do, as they do it, until Ctrl+C.

    \b
    Examples:
      crabtalk events watch
      crabtalk events watch --agent crab --json
    """
    from crabtalk.protocol import wire

    formatter = EventFormatter()
    known_kinds = frozenset(wire.AgentEventKind.values())
    with suppress(KeyboardInterrupt), connect_daemon(home) as client:
        for event in client.subscribe_events(agent=agent, sender=sender, all_kinds=True):
            if event.kind not in known_kinds:
                continue  # the daemon is newer than this command
            if in_json:
                print_json(event_to_json(event))
            elif line := formatter.format_event(event):
                print_output(line)


def read_payload() -> str:
    """Read standard input. A terminal gives an empty payload: the command does not prompt."""
    from crabtalk.protocol import MAX_FRAME

    if sys.stdin.isatty():
        return ""
    # One byte over the limit is enough for the client to raise its error.
    data = sys.stdin.buffer.read(MAX_FRAME + 1)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CommandError("standard input is not UTF-8; convert it first") from None


def subscription_to_json(info: "wire.SubscriptionInfo") -> dict[str, Any]:
    return {
        "id": info.id,
        "source": info.source,
        "target_agent": info.target_agent,
        "once": info.once,
        "created_by": info.created_by if info.HasField("created_by") else None,
    }


def format_subscription(info: "wire.SubscriptionInfo") -> tuple[str, ...]:
    once = " once" if info.once else ""
    creator = f"by {to_one_line(info.created_by)}" if info.created_by else "by unknown"
    return (
        str(info.id),
        to_one_line(info.source),
        f"→ {to_one_line(info.target_agent)}{once}",
        creator,
    )
