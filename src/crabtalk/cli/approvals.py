"""crabtalk approvals: list and answer tool calls that wait for a yes, in any conversation."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from crabtalk.service.command_line import (
    escape_controls,
    format_count,
    get_line_width,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
)

from .approval_text import ALLOW, ALWAYS, DENY, is_approval, needs_owner, render_approval, spell_out
from .errors import CommandError
from .options import connect_daemon, home_option, may_start

if TYPE_CHECKING:
    from crabtalk.client import Client
    from crabtalk.protocol import wire

# A subscription begins with all waiting asks, with no marker after the last one: after this many
# seconds without another there are no more. Asks of other daemons of a fleet come a moment later.
QUIET_SECONDS = 0.5
MAX_FEED_SECONDS = 5.0  # for a feed that is never quiet
LIST_HINT = "`crabtalk approvals` has those that wait"


class PendingApproval(NamedTuple):
    """An ask that contains approvals, and the conversation its answer goes to."""

    agent: str
    sender: str
    ask: "wire.AskUserEvent"


@click.group(invoke_without_command=True)
@home_option
@json_option
@click.pass_context
def approvals(ctx: click.Context, home: Path | None, in_json: bool) -> None:
    """Show tool calls that wait for a yes, of other people's runs too, and answer them.

    \b
    Examples:
      crabtalk approvals
      crabtalk approvals watch
      crabtalk approvals allow 7f3a-1
      crabtalk approvals deny 7f3a-1
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(approvals_list, home=home, in_json=in_json)
    elif in_json:
        raise click.UsageError(f"say --json after {ctx.invoked_subcommand}")
    else:
        ctx.find_root().params["home"] = home  # inherit_from_root reads it there


@approvals.command("list")
@home_option
@json_option
def approvals_list(home: Path | None, in_json: bool) -> None:
    """List the calls that wait, each in full, with the id to answer it by.

    \b
    Examples:
      crabtalk approvals list
      crabtalk approvals list --json
    """
    waiting = load_pending(home)
    if in_json:
        print_json({"approvals": [pending_to_json(pending) for pending in waiting]})
    elif waiting:
        print_output("\n\n".join(map(format_pending, waiting)))
    else:
        print_to_stderr("no call waits for an approval")


@approvals.command("watch")
@home_option
@click.option("--json", "in_json", is_flag=True, help="One JSON object a line.")
def approvals_watch(home: Path | None, in_json: bool) -> None:
    """Show calls as they begin to wait, until Ctrl+C.

    Strangers' calls wait only while some client could answer: this command is one.

    \b
    Examples:
      crabtalk approvals watch
      crabtalk approvals watch --json
    """
    with suppress(KeyboardInterrupt), connect_daemon(home) as client:
        for event in client.subscribe_events(all_kinds=True):
            pending = parse_pending(event)
            if pending is not None and in_json:
                print_json(pending_to_json(pending))
            elif pending is not None:
                print_output(f"{format_pending(pending)}\n")


@approvals.command("allow")
@click.argument("ask_id")
@click.option(
    "--call",
    "numbers",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Only this call of several; the others are denied. Several times.",
)
@click.option("--always", is_flag=True, help="And calls like it, as the list says.")
@home_option
@json_option
def approvals_allow(
    ask_id: str, numbers: tuple[int, ...], always: bool, home: Path | None, in_json: bool
) -> None:
    """Allow the call that waits as ASK_ID. The run goes on with it.

    \b
    Examples:
      crabtalk approvals allow 7f3a-1
      crabtalk approvals allow 7f3a-1 --call 2
      crabtalk approvals allow 7f3a-1 --always
    """
    pending = find_pending(home, ask_id)
    calls = pending.ask.questions
    if any(number > len(calls) for number in numbers):
        raise CommandError(f"{ask_id} has {format_count(len(calls), 'call')}; {LIST_HINT}")
    allowed = [not numbers or number in numbers for number in range(1, len(calls) + 1)]
    if always and not all(
        call.approval.always for call, is_allowed in zip(calls, allowed, strict=True) if is_allowed
    ):
        raise CommandError("“always” is not offered for this call; leave --always out")
    allow_label = ALWAYS if always else ALLOW
    send_answers(
        pending, [allow_label if is_allowed else DENY for is_allowed in allowed], home, in_json
    )


@approvals.command("deny")
@click.argument("ask_id")
@home_option
@json_option
def approvals_deny(ask_id: str, home: Path | None, in_json: bool) -> None:
    """Deny the call that waits as ASK_ID. The run goes on without it.

    \b
    Example:
      crabtalk approvals deny 7f3a-1
    """
    pending = find_pending(home, ask_id)
    send_answers(pending, [DENY] * len(pending.ask.questions), home, in_json)


def find_pending(home: Path | None, ask_id: str) -> PendingApproval:
    for pending in load_pending(home):
        if pending.ask.ask_id == ask_id:
            if not all(map(is_approval, pending.ask.questions)):
                raise CommandError(
                    f"{ask_id} asks something else as well; answer it where the run was started"
                )
            return pending
    raise CommandError(f"no call waits for an approval as {ask_id!r}; {LIST_HINT}")


def load_pending(home: Path | None) -> list[PendingApproval]:
    from .daemon_startup import ensure_daemon

    ensure_daemon(home, start=may_start(), say=print_to_stderr)
    return asyncio.run(collect_pending(home))


async def collect_pending(home: Path | None) -> list[PendingApproval]:
    """Read the asks that a new subscription begins with. Changes nothing, also when cancelled."""
    from crabtalk.client import connect

    pending: list[PendingApproval] = []
    async with connect(home=home, client="crabtalk") as client:
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_FEED_SECONDS):
                await read_feed(client, pending)
    return pending


async def read_feed(client: "Client", pending: list[PendingApproval]) -> None:
    async with aclosing(client.subscribe_events(all_kinds=True)) as events:
        while True:
            async with asyncio.timeout(QUIET_SECONDS):
                event = await anext(events)
            if (approval := parse_pending(event)) is not None:
                pending.append(approval)


def parse_pending(event: "wire.AgentEventMsg") -> PendingApproval | None:
    """Return None for an event that asks for no approval."""
    from crabtalk.protocol import wire

    if event.kind != wire.ASK_USER or not any(map(is_approval, event.ask.questions)):
        return None
    return PendingApproval(event.agent, event.sender, event.ask)


def send_answers(
    pending: PendingApproval, labels: Sequence[str], home: Path | None, in_json: bool
) -> None:
    """Send one label for each call of the ask."""
    import json

    from crabtalk.client import ServerError

    from .approval_text import combine_answers

    ask = pending.ask
    texts = [question.question for question in ask.questions]
    content = json.dumps(combine_answers(list(zip(texts, labels, strict=True))), ensure_ascii=False)
    try:
        with connect_daemon(home) as client:
            client.reply_to_ask(
                pending.agent,
                content,
                sender=pending.sender,
                ask_id=ask.ask_id,
                as_owner=needs_owner(ask) or None,
            )
    except ServerError as error:
        if error.code != 404:
            raise
        raise CommandError(
            f"no run waits for {ask.ask_id} any more: it took too long, or it was answered; "
            f"{LIST_HINT}"
        ) from None
    if in_json:
        print_json({"ask_id": ask.ask_id, "answers": list(labels)})
    else:
        print_to_stderr(f"{spell_out(ask.ask_id)}: {', '.join(labels)}")


def format_pending(pending: PendingApproval) -> str:
    """Render the id and the conversation in one line, then each call in full."""
    ask = pending.ask
    head = f"{ask.ask_id}  {pending.agent} with {pending.sender}"
    parts = [spell_out(head)]
    for number, question in enumerate(ask.questions, 1):
        if not is_approval(question):
            parts.append(f"question {number}: {escape_controls(question.question, layout=True)}")
            continue
        if len(ask.questions) > 1:
            parts.append(f"call {number}")
        width = get_line_width() if sys.stdout.isatty() else 0
        parts.append(render_approval(question, width=width))
    return "\n".join(parts)


def pending_to_json(pending: PendingApproval) -> dict[str, Any]:
    from .wire_json import message_to_dict

    return {
        "ask_id": pending.ask.ask_id,
        "agent": pending.agent,
        "sender": pending.sender,
        "calls": [
            message_to_dict(question.approval)
            for question in pending.ask.questions
            if is_approval(question)
        ],
    }
