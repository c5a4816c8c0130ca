"""Catching up: what a conversation's own messages tell that was not heard as it happened.

Pure. Messages of the daemon in, happenings out, less what envelopes have told of them already: so
however often a run is told, from the feed or from its messages, all of it is told once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from crabtalk.protocol import wire
from crabtalk_web.adapter.happenings import (
    AnyHappening,
    Began,
    Call,
    Called,
    Ended,
    Heard,
    Piece,
    Reason,
    Returned,
    SegmentOver,
    Steered,
    StepOver,
)
from crabtalk_web.adapter.sources import milliseconds
from crabtalk_web.adapter.words import output
from crabtalk_web.stream import Envelope, Text, ToolCallEnd, ToolCallStart, TurnStart

Message = wire.ConversationMessage
Archive = wire.ArchiveInfo
# What the results of calls begin with that failed or were cut off: messages say it in no other way.
FAILURES = (
    "bash failed:",
    "interrupted:",
    "invalid arguments:",
    "permission denied:",
    "tool not available:",
)


def run_of(message: Message) -> str:
    """A name for the run that a message began, where nobody knows its own."""
    return f"message:{message.id}"


def at(message: Message) -> int:
    return milliseconds(message.timestamp)


def made(archive: Archive) -> int:
    return milliseconds(archive.archived_at)


def untold(messages: Iterable[Message], position: int, through: int) -> list[Message]:
    """Those that belong to no run that is told to its end."""
    found: list[Message] = []
    for message in messages:
        if message.id < position:
            continue
        # Times have milliseconds, and in the one in which a turn ends the next may begin.
        is_later = at(message) > through or (at(message) == through and message.role == "user")
        if found or is_later:
            found.append(message)
    return found


def turns(messages: Iterable[Message]) -> list[list[Message]]:
    """Each begins with what a person said. What was said into it is part of it."""
    found: list[list[Message]] = []
    is_steer = False
    for message in messages:
        if message.role != "user":
            is_steer = message.role == "tool"
        elif not is_steer:
            found.append([message])
            continue
        if found:
            found[-1].append(message)
        else:
            found.append([message])  # the rest of a turn whose beginning is told
    return found


def is_complete(turn: Sequence[Message]) -> bool:
    """Whether the agent has said its last word, as far as anybody can see."""
    last = turn[-1]
    return last.role == "assistant" and not last.tool_calls


def ending(turn: Sequence[Message]) -> Ended | None:
    """None where the messages do not say how it ended."""
    return Ended(Reason.COMPLETED) if is_complete(turn) else None


def rest_of(
    turn: Sequence[Message], run: str, told: Iterable[Envelope], agent: str, sender: str
) -> Iterator[Heard]:
    """What happened in a turn, without what was told of it."""
    already = Told(told)
    guest = next((m.agent for m in turn if m.role == "assistant" and m.agent), "")
    has_returned = False  # something of the step that the messages are in
    for number, message in enumerate(turn):
        is_first = number == 0 and message.role == "user"
        for what in happenings(message, already, is_first=is_first):
            has_returned = has_returned or isinstance(what, Returned)
            yield Heard(run=run, what=what, at=at(message), guest=guest, agent=agent, sender=sender)
        is_last = number + 1 == len(turn) or turn[number + 1].role != "tool"
        if has_returned and is_last:
            has_returned = False
            yield Heard(run=run, what=StepOver(), at=at(message), guest=guest, agent=agent)


def happenings(message: Message, already: "Told", *, is_first: bool) -> Iterator[AnyHappening]:
    match message.role:
        case "user" if is_first:
            if not already.has_begun:
                yield Began(message.content)
        case "user":
            if not already.was_said(message.content):
                yield Steered(message.content)
        case "assistant":
            for text, thinking in ((message.reasoning, True), (message.content, False)):
                if (rest := already.rest(text, thinking=thinking)).strip():
                    yield Piece(rest, thinking=thinking)
                    yield SegmentOver()
            calls = tuple(
                Call(call.id, call.name, call.arguments)
                for call in message.tool_calls
                if not already.was_called(call.id)
            )
            if calls:
                yield Called(calls)
        case "tool":
            if not already.has_returned(message.call_id):
                is_error = message.content.startswith(FAILURES)
                yield Returned(message.call_id, message.content, is_error)
        case _:
            pass


class Told:
    """What envelopes have told of one run, taken out as it is found again."""

    def __init__(self, envelopes: Iterable[Envelope]) -> None:
        self.has_begun = False
        self._texts = {False: "", True: ""}
        self._said: Counter[str] = Counter()
        self._called: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._ids: dict[str, str] = {}  # of calls, by the names they were given
        self._open: Counter[str] = Counter()
        self._tasks: set[str] = set()
        self._thought = ""  # as the last envelope has it
        for envelope in envelopes:
            self._read(envelope)
            match envelope.ev:
                case Text(text=text, thinking=True):
                    self._thought = text
                case _:
                    self._thought = ""

    def _read(self, envelope: Envelope) -> None:
        match envelope.ev:
            case TurnStart():
                self.has_begun = True
            case Text(text=text) if envelope.role == "user":
                self._said[squeezed(text)] += 1
            case Text(text=text, thinking=thinking) if envelope.subagent not in self._tasks:
                self._texts[thinking] += squeezed(text)
            case ToolCallStart() if envelope.subagent not in self._tasks:
                self._start(envelope.ev)
            case ToolCallEnd(call=name, result=result) if envelope.subagent not in self._tasks:
                if self._thought and self._thought == output(result):
                    shown = squeezed(self._thought)  # no thought, but what the tool gave back
                    self._texts[True] = self._texts[True].removesuffix(shown)
                call = self._ids.get(name, name)
                self._open[call] -= 1
                if self._open[call] <= 0:
                    self._returned[call] += 1
            case ToolCallStart(args=args):
                self._tasks.add(str(args.get("sessionSubagent", "")))
            case _:
                pass

    def _start(self, start: ToolCallStart) -> None:
        call, _, repeated = start.call.rpartition("~")
        call = call if call and repeated.isdecimal() else start.call
        subagent = start.args.get("sessionSubagent")
        if isinstance(subagent, str):
            self._tasks.add(subagent)
            call, _, number = call.rpartition(":")
            self._called[call] += number == "0"
        else:
            self._called[call] += 1
        self._ids[start.call] = call
        self._open[call] += 1

    def was_said(self, text: str) -> bool:
        return taken(self._said, squeezed(text))

    def was_called(self, call: str) -> bool:
        return taken(self._called, call)

    def has_returned(self, call: str) -> bool:
        return taken(self._returned, call)

    def rest(self, text: str, *, thinking: bool) -> str:
        """Pieces are told without the space around them, so space does not count."""
        told, whole = self._texts[thinking], squeezed(text)
        if told.startswith(whole):
            self._texts[thinking] = told[len(whole) :]
            return ""
        same = common(told, whole)
        self._texts[thinking] = ""
        return after(text, same)


def taken(counted: Counter[str], key: str) -> bool:
    if counted[key] <= 0:
        return False
    counted[key] -= 1
    return True


def squeezed(text: str) -> str:
    return "".join(text.split())


def common(one: str, other: str) -> int:
    for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return number
    return min(len(one), len(other))


def after(text: str, count: int) -> str:
    """What follows so many characters that are no space."""
    for place, character in enumerate(text):
        if count == 0:
            return text[place:]
        count -= not character.isspace()
    return ""
