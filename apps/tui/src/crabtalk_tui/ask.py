"""crabtalk ask: one turn with an agent, for people in a hurry and for scripts."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.component.command import one_line, say, visible

from .complaints import CommandError, is_too_long
from .direct import connected, root_of, streamed
from .message import has_terminal, message
from .names import AgentName
from .options import AGENT, daemon, home_option, inherited, mode_option, typed
from .telling import Objects, Telling, Text
from .waiting import Waiting

if TYPE_CHECKING:
    from crabtalk.client import Event
    from crabtalk.protocol import wire

DENIED = "permission denied:"
ALLOWING = "--mode auto"


@click.command()
@click.argument("words", nargs=-1, metavar="[WORDS|-]...")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Say what is in it too; several times.",
)
@click.option(
    "--agent", type=AgentName(), callback=inherited, help=f"Whom to ask  [default: {AGENT}]"
)
@click.option("--sender", callback=inherited, metavar="NAME", help="As whom  [default: user]")
@click.option("--guest", type=AgentName(), help="Who answers instead, in the same conversation.")
@click.option(
    "--cwd",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the agent works  [default: here]",
)
@click.option("--tool-choice", metavar="TOOL", help="auto, none, required, or the tool to call.")
@mode_option
@click.option("--key", metavar="KEY", help="Say it once; again, print the stored answer.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing of what the agent does.")
@click.option("--json", "in_json", is_flag=True, help="One JSON object an event, a line each.")
@home_option
def ask(
    words: tuple[str, ...],
    files: tuple[Path, ...],
    agent: str | None,
    sender: str | None,
    guest: str | None,
    cwd: Path | None,
    tool_choice: str | None,
    mode: str | None,
    key: str | None,
    quiet: bool,
    in_json: bool,
    home: Path | None,
) -> None:
    """Ask an agent, and print what it answers as it does.

    \b
    Examples:
      crabtalk ask "What do crabs dream of?"
      git diff | crabtalk ask "Review this" -f STYLE.md
      crabtalk ask --json "Count to three" | jq .event
      crabtalk ask --key "report-$(date +%F)" "Write today's report"
    """
    said = message(words, files)
    from crabtalk.protocol import wire

    usual_agent, usual_sender = usual(home)
    request = wire.StreamMsg(
        agent=agent or usual_agent,
        content=said,
        sender=sender or usual_sender or None,
        guest=guest or None,
        cwd=str((cwd or Path.cwd()).absolute()),
        tool_choice=tool_choice or None,
        mode=mode or None,
        unattended=None if can_answer() else True,
        key=key or None,
    )
    sys.exit(Turn(home, request, Objects() if in_json else Text(quiet=quiet)).run())


def usual(home: Path | None) -> tuple[str, str]:
    """Whom to ask and as whom, where nobody is named: as in the chat."""
    if not (root_of(home) / "config" / "tui.toml").exists():
        return AGENT, ""
    from .chat.settings import read_settings

    settings, problem = read_settings(home)
    if problem:
        say(problem)
    return settings.agent or AGENT, settings.sender


class Turn:
    """One, from the question to an exit status. Left early, as by Ctrl+C, it is cancelled."""

    def __init__(self, home: Path | None, request: "wire.StreamMsg", telling: Telling) -> None:
        self._home = home
        self._request = request
        self._telling = telling
        self._who = request.guest or request.agent
        self._is_taken = False  # by the daemon, which may have other turns to carry out first
        self._has_begun = False  # before which what is said is kept
        self._is_calling = False  # between the calls of a step and their results
        self._unanswered = ""
        self._is_stored = False  # the turn was over before this command
        self._asking: set[str] = set()  # ids of calls that put a question, and have no answer
        self._calls: dict[str, str] = {}  # names of tools by the id of the call
        self._refused: list[str] = []  # tools that nobody was there to allow

    def run(self) -> int:
        from crabtalk.protocol import wire

        end = wire.StreamEnd()
        with (
            self._cut_off(),
            self._telling,
            self._events() as events,
            Waiting(self._home, self._request) as waiting,
        ):
            for event in events:
                self._is_taken = True
                if isinstance(event, wire.StreamStart):
                    self._is_stored = event.stored
                    waiting.begin(event.run_id)
                else:
                    waiting.over()
                    # A question may be that of the turn before this one.
                    self._has_begun |= not isinstance(event, wire.AskUserEvent)
                self._telling.tell(event)
                match event:
                    case wire.ToolStartEvent():
                        self._is_calling = not event.early
                        self._calls |= {call.id: call.name for call in event.calls}
                        self._asking |= {c.id for c in event.calls if c.name == "ask_user"}
                    case wire.ToolResultEvent():
                        if is_unattended_refusal(event):
                            self._refused.append(self._calls.get(event.call_id, "a tool"))
                        if not event.is_error:
                            self._asking.discard(event.call_id)
                    case wire.ToolsCompleteEvent():
                        self._is_calling = False
                    case wire.AskUserEvent():
                        self._answer(event)
                    case wire.StreamEnd():
                        end = event
        return self._status(end)

    @contextmanager
    def _events(self) -> "Iterator[Iterator[Event]]":
        asked = self._request
        # With a key the client is worth its loading time: it goes on when the daemon is restarted.
        line = connected(self._home) if not asked.key else None
        if line is not None:
            with closing(streamed(line, asked)) as events:
                yield events
            return
        with (
            daemon(self._home) as client,
            closing(
                client.stream(
                    asked.agent,
                    asked.content,
                    sender=asked.sender,
                    guest=asked.guest,
                    cwd=asked.cwd,
                    tool_choice=asked.tool_choice,
                    mode=asked.mode or None,
                    unattended=asked.unattended or None,
                    key=asked.key or None,
                )
            ) as events,
        ):
            yield events

    @contextmanager
    def _cut_off(self) -> Iterator[None]:
        """A daemon that leaves amid the turn, and whether what was said is to be said again."""
        from crabtalk.protocol import ConnectionClosedError

        try:
            yield
        except ConnectionClosedError as error:
            raise CommandError(f"the daemon went away ({error}); {self._kept()}") from None
        except Exception as error:
            why = parting(error) if self._is_taken else None
            if why is None:
                raise
            raise CommandError(f"{why}; {self._kept()}") from None

    def _kept(self) -> str:
        if self._request.key:
            return "run the same command again when it is back: it is not said twice"
        if self._has_begun:
            return "what was said is kept; ask it to go on when the daemon is back"
        asked = self._request
        look = typed("conversations show", asked.agent, asked.sender, self._home)
        return f"`{look}` tells whether what was said is kept; look before you say it again"

    def _answer(self, asked: "wire.AskUserEvent") -> None:
        from .questions import answered, as_sentence

        if can_answer():
            self._reply(asked, answered(asked, self._who))
        elif self._is_calling:
            self._unanswered = as_sentence(asked)
            with daemon(self._home) as client:
                client.kill(self._request.agent, sender=self._request.sender)
        else:  # not ours: the turn before this one waits, and the daemon knows how long
            say(f"an earlier turn waits for an answer, and this one for it: {as_sentence(asked)}")

    def _reply(self, asked: "wire.AskUserEvent", text: str) -> None:
        from crabtalk.client import ServerError

        from .approval_text import needs_owner

        request = self._request
        try:
            with daemon(self._home) as client:
                client.reply_to_ask(
                    request.agent,
                    text,
                    sender=request.sender,
                    ask_id=asked.ask_id or None,
                    # Whoever speaks for a stranger at a terminal of this account is the owner.
                    as_owner=needs_owner(asked) or None,
                )
        except ServerError as error:
            if error.code != 404:
                raise
            say("nobody waits for that any more: it took too long, or another has answered")

    def _status(self, end: "wire.StreamEnd") -> int:
        from crabtalk.protocol import wire

        if self._refused:
            say(refusal_sentence(self._refused))
        if self._unanswered:
            raise CommandError(
                f"{self._who} asks, and without a terminal nobody can answer: {self._unanswered}; "
                "the turn was stopped, ask again at a terminal"
            )
        if end.error:
            say(f"crabtalk: {visible(end.error, layout=True)}")
            if is_too_long(end.error):
                say("more was said than the model reads; `crabtalk`, and /new in it, begins afresh")
            return 1
        match end.stop_reason:
            case wire.STOP_REASON_CANCELLED if self._is_stored and self._asking:
                raise CommandError(
                    f"{self._who} asked something that nobody could answer, and the turn was "
                    "stopped; ask again at a terminal, with another key"
                )
            case wire.STOP_REASON_CANCELLED:
                say("crabtalk: the turn was stopped; what was said by then is kept")
                return 130
            case wire.STOP_REASON_MAX_ITERATIONS:
                raise CommandError(
                    f"{self._who} used up its steps before it was done; ask it to go on, or raise "
                    "max_iterations in its file"
                )
            case wire.STOP_REASON_NO_ACTION:
                raise CommandError(f"the model said nothing; ask {self._who} again")
            case wire.STOP_REASON_LENGTH:
                say("the model's limit cut this answer off; ask it to go on")
        return 0


def can_answer() -> bool:
    """Whether somebody can read a question on stderr and answer it on stdin."""
    return has_terminal() and sys.stderr is not None and sys.stderr.isatty()


def is_unattended_refusal(result: "wire.ToolResultEvent") -> bool:
    """Whether a call was refused because it needs an approval and nobody can give it."""
    return result.is_error and result.output.startswith(DENIED) and ALLOWING in result.output


def refusal_sentence(tools: list[str]) -> str:
    names = list(dict.fromkeys(map(one_line, tools)))
    was = "was" if len(names) == 1 else "were"
    return (
        f"{', '.join(names)} {was} not allowed: that needs an approval, and nobody is here to give "
        f"it; `crabtalk ask {ALLOWING}` runs it without asking"
    )


def parting(error: Exception) -> str | None:
    """Why a daemon leaves a turn, without the advice to try again; None for any other error."""
    from crabtalk.client import ServerError

    if isinstance(error, ServerError) and error.code == 503:
        return error.message.partition("; ")[0]
    return None
