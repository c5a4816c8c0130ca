"""crabtalk search: what was said, in any conversation, and what was said around it."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import (
    document,
    json_option,
    line_width,
    one_line,
    say,
    show,
    styled,
)

from .emphasis import emphasised
from .moments import Moment, local, rfc3339
from .options import daemon, home_option

if TYPE_CHECKING:
    from crabtalk.protocol import wire

MARK = "> "


@click.command()
@click.argument("query", nargs=-1, required=True, metavar="QUERY...")
@click.option("--agent", help="Only conversations with this agent.")
@click.option("--sender", help="Only conversations of this sender.")
@click.option(
    "--since", type=Moment(), metavar="TIME", help="Said since then: 2026-11-01, 12h, 7d."
)
@click.option(
    "--until",
    type=Moment(whole_day=True),
    metavar="TIME",
    help="Said until then; a day counts whole.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 20),
    default=5,
    show_default=True,
    metavar="N",
    help="Conversations at most.",
)
@click.option(
    "--context",
    type=click.IntRange(0, 15),
    default=2,
    show_default=True,
    metavar="N",
    help="Messages before and after.",
)
@home_option
@json_option
def search(
    query: tuple[str, ...],
    agent: str | None,
    sender: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    context: int,
    home: Path | None,
    in_json: bool,
) -> None:
    """Find what was said, the best conversation first. `>` marks the message.

    \b
    Examples:
      crabtalk search "the lighthouse"
      crabtalk search tide tables --agent crab --since 7d
      crabtalk search deploy --until 2026-11-01 --context 0 --json
    """
    asked = " ".join(query)
    with daemon(home) as client:
        found = client.search_sessions(
            asked,
            agent=agent,
            sender=sender,
            limit=limit,
            context_before=context,
            context_after=context,
            since=rfc3339(since) if since else None,
            until=rfc3339(until) if until else None,
        )
    if in_json:
        document({"hits": [as_json(hit) for hit in found.hits]})
    elif found.hits:
        show("\n\n".join(hit_text(hit, asked) for hit in found.hits))
    else:
        say("nothing found")


def as_json(hit: "wire.SessionHit") -> dict[str, Any]:
    return {
        "agent": hit.agent,
        "sender": hit.sender,
        "title": hit.title,
        "updated_at": hit.updated_at,
        "score": hit.score,
        "message_id": hit.message_id,
        "window": [
            {
                "message_id": item.message_id,
                "role": item.role,
                "tool_name": item.tool_name,
                "snippet": item.snippet,
                "truncated": item.truncated,
            }
            for item in hit.window
        ],
    }


def hit_text(hit: "wire.SessionHit", query: str) -> str:
    title = styled(one_line(hit.title) or "(untitled)", bold=True)
    head = f"{title} · {one_line(hit.agent)} with {one_line(hit.sender)} · {local(hit.updated_at)}"
    lines = [item_line(item, query, item.message_id == hit.message_id) for item in hit.window]
    return "\n".join([head, *lines])


def item_line(item: "wire.SessionHitItem", query: str, is_match: bool) -> str:
    """The message that matched is shown as far as there is of it, others a line each."""
    mark = MARK if is_match else " " * len(MARK)
    who = f"{item.role}:{one_line(item.tool_name)}" if item.tool_name else item.role
    head = f"{mark}#{item.message_id} {who}: "
    text = f"{item.snippet} …" if item.truncated else item.snippet
    if is_match:
        return head + emphasised(one_line(text), query)
    return head + one_line(text, max(20, line_width() - len(head)))
