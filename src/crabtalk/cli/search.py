"""crabtalk search: find messages in all conversations, shown with the messages around them."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    apply_style,
    get_line_width,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .options import connect_daemon, home_option
from .search_highlight import highlight_terms
from .times import TimeParameter, format_local_time, format_rfc3339

if TYPE_CHECKING:
    from crabtalk.protocol import wire

MATCH_MARK = "> "


@click.command()
@click.argument("query", nargs=-1, required=True, metavar="QUERY...")
@click.option("--agent", help="Only conversations with this agent.")
@click.option("--sender", help="Only conversations of this sender.")
@click.option(
    "--since", type=TimeParameter(), metavar="TIME", help="Said since then: 2026-11-01, 12h, 7d."
)
@click.option(
    "--until",
    type=TimeParameter(whole_day=True),
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
    query_text = " ".join(query)
    with connect_daemon(home) as client:
        results = client.search_sessions(
            query_text,
            agent=agent,
            sender=sender,
            limit=limit,
            context_before=context,
            context_after=context,
            since=format_rfc3339(since) if since else None,
            until=format_rfc3339(until) if until else None,
        )
    if in_json:
        print_json({"hits": [hit_to_json(hit) for hit in results.hits]})
    elif results.hits:
        print_output("\n\n".join(format_hit(hit, query_text) for hit in results.hits))
    else:
        print_to_stderr("nothing found")


def hit_to_json(hit: "wire.SessionHit") -> dict[str, Any]:
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


def format_hit(hit: "wire.SessionHit", query: str) -> str:
    title = apply_style(to_one_line(hit.title) or "(untitled)", bold=True)
    head = (
        f"{title} · {to_one_line(hit.agent)} with {to_one_line(hit.sender)} · "
        f"{format_local_time(hit.updated_at)}"
    )
    lines = [format_item(item, query, item.message_id == hit.message_id) for item in hit.window]
    return "\n".join([head, *lines])


def format_item(item: "wire.SessionHitItem", query: str, is_match: bool) -> str:
    """Render the matching message in full, and others in one line each."""
    mark = MATCH_MARK if is_match else " " * len(MATCH_MARK)
    role = f"{item.role}:{to_one_line(item.tool_name)}" if item.tool_name else item.role
    head = f"{mark}#{item.message_id} {role}: "
    text = f"{item.snippet} …" if item.truncated else item.snippet
    if is_match:
        return head + highlight_terms(to_one_line(text), query)
    return head + to_one_line(text, max(20, get_line_width() - len(head)))
