"""Converts values of storage and the runtime to wire messages."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta

from crabtalk.daemon.events.stream_events import MAX_WIRE_COUNT, to_call_infos
from crabtalk.protocol import wire
from crabtalk.storage import (
    Agent,
    Archive,
    ConversationMeta,
    MessageRecord,
    StoredConversation,
    render_settings,
)

DAMAGED_MESSAGE_TEXT = (
    "[This message is damaged on disk and was left out. `crabtalk doctor` names the record.]"
)


def to_agent_info(agent: Agent) -> wire.AgentInfo:
    """Secrets in its settings are masked."""
    return wire.AgentInfo(
        name=agent.name,
        description=agent.description,
        config=json.dumps(render_settings(agent), ensure_ascii=False),
        model=agent.model,
        max_iterations=agent.max_iterations,
        thinking=agent.thinking,
        skills=agent.skills,
        mcps=[server.name for server in agent.mcps],
        compact_tool_max_len=min(agent.compact_tool_max_len, 2**32 - 1),
    )


def add_conversation(
    answer: wire.ConversationList, handle: str, meta: ConversationMeta, days: "DayNames"
) -> None:
    began = parse_time(meta.created_at)
    last = parse_time(meta.updated_at)
    lasted = (last - began).total_seconds() if began is not None and last is not None else 0
    answer.conversations.add(
        agent=meta.agent,
        sender=meta.created_by,
        seq=1,  # a pair has one conversation, for good
        title=meta.title,
        file_path=handle,
        message_count=meta.message_count,
        alive_secs=max(0, int(lasted)),
        date=days.name_day(began) if began is not None else "",
        mode=meta.mode or None,
    )


def to_conversation_message(
    record: MessageRecord, *, with_runs: bool = False
) -> wire.ConversationMessage:
    """`with_runs` adds the run id, the key, and whether a call failed."""
    message = record.message
    answer = wire.ConversationMessage(
        role=message.role,
        content=message.text,
        id=record.id,
        timestamp=record.at,
        agent=message.agent or None,
        reasoning=message.reasoning or None,
        tool_calls=to_call_infos(message.tool_calls),
        call_id=message.call_id or None,
    )
    if with_runs:
        answer.run_id = record.run
        if message.is_error:
            answer.is_error = True
        if record.key:
            answer.key = record.key
        if record.said:
            answer.said = record.said
        if record.steer:
            answer.steer = min(record.steer, MAX_WIRE_COUNT)
    return answer


def to_damaged_message(number: int, at: str) -> wire.ConversationMessage:
    """A note in place of a damaged message. The role is lost with the message; the note is the
    agent's, because every client shows those."""
    return wire.ConversationMessage(
        role="assistant", content=DAMAGED_MESSAGE_TEXT, id=number, timestamp=at
    )


def insert_damaged_messages(
    messages: Iterable[MessageRecord], damaged: Iterable[int], *, with_runs: bool = False
) -> list[wire.ConversationMessage]:
    """The messages by id, with a note for each damaged one. Messages of a run with a key have
    their run fields even without `with_runs`; a client that uses no keys sees none."""
    missing_ids = sorted(damaged, reverse=True)
    result: list[wire.ConversationMessage] = []
    at = ""
    for record in messages:
        while missing_ids and missing_ids[-1] < record.id:
            result.append(to_damaged_message(missing_ids.pop(), at or record.at))
        show_run = with_runs or record.is_keyed
        result.append(to_conversation_message(record, with_runs=show_run))
        at = record.at
    return result + [to_damaged_message(number, at) for number in reversed(missing_ids)]


def to_conversation_history(
    stored: StoredConversation, *, with_runs: bool = False
) -> wire.ConversationHistory:
    """The messages in the agent's context, without tool calls and results."""
    records = [r for r in stored.messages if r.message.role in ("user", "assistant")]
    messages = insert_damaged_messages(records, stored.damaged, with_runs=with_runs)
    if (marker := stored.marker) is not None and marker.summary:
        summary = wire.ConversationMessage(
            role="user", content=marker.summary, timestamp=marker.archived_at
        )
        messages.insert(0, summary)
    return wire.ConversationHistory(
        messages=messages, title=stored.meta.title, agent=stored.meta.agent
    )


def to_archive_list(archives: Iterable[Archive]) -> wire.ArchiveList:
    return wire.ArchiveList(
        archives=[
            wire.ArchiveInfo(
                name=archive.name,
                title=archive.title,
                archived_at=archive.archived_at,
                summary=archive.summary,
                first_id=archive.first_id,
                end_id=archive.end_id,
            )
            for archive in archives
        ]
    )


def parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


class DayNames:
    """Names days relative to now, in the daemon's time zone. One instance per listing."""

    def __init__(self, now: datetime) -> None:
        self._zone = now.tzinfo
        self._today = now.date()
        self._yesterday = self._today - timedelta(days=1)

    def name_day(self, when: datetime) -> str:
        date = when.astimezone(self._zone).date()
        if date == self._today:
            return "Today"
        return "Yesterday" if date == self._yesterday else date.isoformat()
