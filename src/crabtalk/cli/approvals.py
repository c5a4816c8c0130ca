"""crabtalk approvals: tool calls that wait for a yes, in any conversation, and the answer."""

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

# The daemon tells of waiting asks at once, with no mark after the last one: so many seconds without
# another mean that there is none. Asks of other daemons of a fleet come a moment later.
QUIET_SECONDS = 0.5
MAX_FEED_SECONDS = 5.0  # seconds, on a feed that is never quiet
LIST_HINT = "`crabtalk approvals` has those that wait"


class PendingApproval(NamedTuple):
    """An ask with approvals in it, and the conversation its answer goes to."""

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
        ctx.find_root().params["home"] = home  # where the commands below look for it


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
    found = load_pending(home)
    if in_json:
        print_json({"approvals": [pending_to_json(each) for each in found]})
    elif found:
        print_output("\n\n".join(map(format_pending, found)))
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
            waiting = parse_pending(event)
            if waiting is not None and in_json:
                print_json(pending_to_json(waiting))
            elif waiting is not None:
                print_output(f"{format_pending(waiting)}\n")


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
    waiting = find_pending(home, ask_id)
    calls = waiting.ask.questions
    if any(number > len(calls) for number in numbers):
        raise CommandError(f"{ask_id} has {format_count(len(calls), 'call')}; {LIST_HINT}")
    allowed = [not numbers or number in numbers for number in range(1, len(calls) + 1)]
    if always and not all(
        call.approval.always for call, is_allowed in zip(calls, allowed, strict=True) if is_allowed
    ):
        raise CommandError("“always” is not offered for this call; leave --always out")
    yes = ALWAYS if always else ALLOW
    send_answers(waiting, [yes if is_allowed else DENY for is_allowed in allowed], home, in_json)


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
    waiting = find_pending(home, ask_id)
    send_answers(waiting, [DENY] * len(waiting.ask.questions), home, in_json)


def find_pending(home: Path | None, ask_id: str) -> PendingApproval:
    for each in load_pending(home):
        if each.ask.ask_id == ask_id:
            if not all(map(is_approval, each.ask.questions)):
                raise CommandError(
                    f"{ask_id} asks something else as well; answer it where the run was started"
                )
            return each
    raise CommandError(f"no call waits for an approval as {ask_id!r}; {LIST_HINT}")


def load_pending(home: Path | None) -> list[PendingApproval]:
    from .daemon_startup import ensure_daemon

    ensure_daemon(home, start=may_start(), say=print_to_stderr)
    return asyncio.run(collect_pending(home))


async def collect_pending(home: Path | None) -> list[PendingApproval]:
    """What the feed tells first, until it is quiet. Cancelled, nothing has happened."""
    from crabtalk.client import connect

    found: list[PendingApproval] = []
    async with connect(home=home, client="crabtalk") as client:
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_FEED_SECONDS):
                await read_feed(client, found)
    return found


async def read_feed(client: "Client", found: list[PendingApproval]) -> None:
    async with aclosing(client.subscribe_events(all_kinds=True)) as events:
        while True:
            async with asyncio.timeout(QUIET_SECONDS):
                event = await anext(events)
            if (waiting := parse_pending(event)) is not None:
                found.append(waiting)


def parse_pending(event: "wire.AgentEventMsg") -> PendingApproval | None:
    """None for every event that asks for no approval."""
    from crabtalk.protocol import wire

    if event.kind != wire.ASK_USER or not any(map(is_approval, event.ask.questions)):
        return None
    return PendingApproval(event.agent, event.sender, event.ask)


def send_answers(
    waiting: PendingApproval, labels: Sequence[str], home: Path | None, in_json: bool
) -> None:
    """Sends one label for each call of the ask."""
    import json

    from crabtalk.client import ServerError

    from .approval_text import combine_answers

    ask = waiting.ask
    texts = [question.question for question in ask.questions]
    content = json.dumps(combine_answers(list(zip(texts, labels, strict=True))), ensure_ascii=False)
    try:
        with connect_daemon(home) as client:
            client.reply_to_ask(
                waiting.agent,
                content,
                sender=waiting.sender,
                ask_id=ask.ask_id,
                as_owner=needs_owner(ask) or None,
            )
    except ServerError as error:
        if error.code != 404:
            raise
        raise CommandError(
            f"nobody waits for {ask.ask_id} any more: it took too long, or it was answered; "
            f"{LIST_HINT}"
        ) from None
    if in_json:
        print_json({"ask_id": ask.ask_id, "answers": list(labels)})
    else:
        print_to_stderr(f"{spell_out(ask.ask_id)}: {', '.join(labels)}")


def format_pending(waiting: PendingApproval) -> str:
    """The id and the conversation in a line, then each call in full."""
    ask = waiting.ask
    head = f"{ask.ask_id}  {waiting.agent} with {waiting.sender}"
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


def pending_to_json(waiting: PendingApproval) -> dict[str, Any]:
    from .wire_json import message_to_dict

    return {
        "ask_id": waiting.ask.ask_id,
        "agent": waiting.agent,
        "sender": waiting.sender,
        "calls": [
            message_to_dict(question.approval)
            for question in waiting.ask.questions
            if is_approval(question)
        ],
    }
