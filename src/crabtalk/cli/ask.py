"""crabtalk ask: run one turn with an agent and print the answer, for people and for scripts."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.service.command_line import escape_controls, print_to_stderr, to_one_line

from .busy_notice import BusyNotice
from .errors import CommandError, is_context_overflow
from .message_input import build_message, has_terminal
from .name_completion import AgentName
from .options import (
    DEFAULT_AGENT,
    connect_daemon,
    format_command,
    home_option,
    inherit_from_root,
    mode_option,
)
from .socket_stream import connect_socket, resolve_home, stream_turn
from .turn_output import JsonTurnOutput, TextTurnOutput, TurnOutput

if TYPE_CHECKING:
    from crabtalk.client import Event
    from crabtalk.protocol import wire

DENIAL_PREFIX = "permission denied:"
ALLOW_FLAG = "--mode auto"


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
    "--agent",
    type=AgentName(),
    callback=inherit_from_root,
    help=f"Whom to ask  [default: {DEFAULT_AGENT}]",
)
@click.option(
    "--sender", callback=inherit_from_root, metavar="NAME", help="As whom  [default: user]"
)
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
    content = build_message(words, files)
    from crabtalk.protocol import wire

    default_agent, default_sender = load_default_names(home)
    request = wire.StreamMsg(
        agent=agent or default_agent,
        content=content,
        sender=sender or default_sender or None,
        guest=guest or None,
        cwd=str((cwd or Path.cwd()).absolute()),
        tool_choice=tool_choice or None,
        mode=mode or None,
        unattended=None if can_answer() else True,
        key=key or None,
    )
    sys.exit(
        AskTurn(home, request, JsonTurnOutput() if in_json else TextTurnOutput(quiet=quiet)).run()
    )


def load_default_names(home: Path | None) -> tuple[str, str]:
    """Return the chat's default agent and sender, for commands that name none."""
    if not (resolve_home(home) / "config" / "tui.toml").exists():
        return DEFAULT_AGENT, ""
    from crabtalk.chat.settings import read_settings

    settings, problem = read_settings(home)
    if problem:
        print_to_stderr(problem)
    return settings.agent or DEFAULT_AGENT, settings.sender


class AskTurn:
    """One turn, from the message to an exit status. Leaving early, as by Ctrl+C, cancels it."""

    def __init__(self, home: Path | None, request: "wire.StreamMsg", output: TurnOutput) -> None:
        self._home = home
        self._request = request
        self._output = output
        self._agent_name = request.guest or request.agent
        self._is_accepted = False  # by the daemon, which may run other turns first
        self._has_begun = False  # the daemon stores the message before a turn begins
        self._is_calling_tools = False  # between the calls of a step and their results
        self._unanswered_question = ""
        self._is_stored = False  # the turn was over before this command
        # Ids of `ask_user` calls without an answer.
        self._open_question_calls: set[str] = set()
        self._tool_names: dict[str, str] = {}  # by the id of the call
        self._refused_tools: list[str] = []  # refused because the turn was unattended

    def run(self) -> int:
        from crabtalk.protocol import wire

        end = wire.StreamEnd()
        with (
            self._explain_lost_daemon(),
            self._output,
            self._open_stream() as events,
            BusyNotice(self._home, self._request) as busy_notice,
        ):
            for event in events:
                self._is_accepted = True
                if isinstance(event, wire.StreamStart):
                    self._is_stored = event.stored
                    busy_notice.set_run_id(event.run_id)
                else:
                    busy_notice.cancel()
                    # A question may come from the turn before this one.
                    self._has_begun |= not isinstance(event, wire.AskUserEvent)
                self._output.write_event(event)
                match event:
                    case wire.ToolStartEvent():
                        self._is_calling_tools = not event.early
                        self._tool_names |= {call.id: call.name for call in event.calls}
                        self._open_question_calls |= {
                            c.id for c in event.calls if c.name == "ask_user"
                        }
                    case wire.ToolResultEvent():
                        if is_unattended_refusal(event):
                            self._refused_tools.append(
                                self._tool_names.get(event.call_id, "a tool")
                            )
                        if not event.is_error:
                            self._open_question_calls.discard(event.call_id)
                    case wire.ToolsCompleteEvent():
                        self._is_calling_tools = False
                    case wire.AskUserEvent():
                        self._handle_question(event)
                    case wire.StreamEnd():
                        end = event
        return self._compute_exit_status(end)

    @contextmanager
    def _open_stream(self) -> "Iterator[Iterator[Event]]":
        request = self._request
        # With a key the slower client is worth loading: it follows the turn over a daemon restart.
        connection = connect_socket(self._home) if not request.key else None
        if connection is not None:
            with closing(stream_turn(connection, request)) as events:
                yield events
            return
        with (
            connect_daemon(self._home) as client,
            closing(
                client.stream(
                    request.agent,
                    request.content,
                    sender=request.sender,
                    guest=request.guest,
                    cwd=request.cwd,
                    tool_choice=request.tool_choice,
                    mode=request.mode or None,
                    unattended=request.unattended or None,
                    key=request.key or None,
                )
            ) as events,
        ):
            yield events

    @contextmanager
    def _explain_lost_daemon(self) -> Iterator[None]:
        """If the daemon is lost, raise CommandError that says whether to send the message again."""
        from crabtalk.protocol import ConnectionClosedError

        try:
            yield
        except ConnectionClosedError as error:
            raise CommandError(f"the daemon went away ({error}); {self._advise_retry()}") from None
        except Exception as error:
            reason = get_shutdown_reason(error) if self._is_accepted else None
            if reason is None:
                raise
            raise CommandError(f"{reason}; {self._advise_retry()}") from None

    def _advise_retry(self) -> str:
        if self._request.key:
            return "run the same command again when it is back: it is not said twice"
        if self._has_begun:
            return "what was said is kept; ask it to go on when the daemon is back"
        request = self._request
        show_command = format_command(
            "conversations show", request.agent, request.sender, self._home
        )
        return f"`{show_command}` tells whether what was said is kept; look before you say it again"

    def _handle_question(self, event: "wire.AskUserEvent") -> None:
        from .question_prompts import ask_questions, summarize_questions

        if can_answer():
            self._send_reply(event, ask_questions(event, self._agent_name))
        elif self._is_calling_tools:
            self._unanswered_question = summarize_questions(event)
            with connect_daemon(self._home) as client:
                client.kill(self._request.agent, sender=self._request.sender)
        else:  # asked by an earlier turn; the daemon ends that wait
            print_to_stderr(
                "an earlier turn waits for an answer, and this one for it: "
                f"{summarize_questions(event)}"
            )

    def _send_reply(self, event: "wire.AskUserEvent", text: str) -> None:
        from crabtalk.client import ServerError

        from .approval_text import needs_owner

        request = self._request
        try:
            with connect_daemon(self._home) as client:
                client.reply_to_ask(
                    request.agent,
                    text,
                    sender=request.sender,
                    ask_id=event.ask_id or None,
                    # The person at a terminal of this account is the owner, whatever --sender says.
                    as_owner=needs_owner(event) or None,
                )
        except ServerError as error:
            if error.code != 404:
                raise
            print_to_stderr(
                "no run waits for that any more: it took too long, or another client answered"
            )

    def _compute_exit_status(self, end: "wire.StreamEnd") -> int:
        from crabtalk.protocol import wire

        if self._refused_tools:
            print_to_stderr(format_refusal(self._refused_tools))
        if self._unanswered_question:
            raise CommandError(
                f"{self._agent_name} asks, and without a terminal it gets no answer: "
                f"{self._unanswered_question}; the turn was stopped, ask again at a terminal"
            )
        if end.error:
            print_to_stderr(f"crabtalk: {escape_controls(end.error, layout=True)}")
            if is_context_overflow(end.error):
                print_to_stderr(
                    "more was said than the model reads; `crabtalk`, and /new in it, begins afresh"
                )
            return 1
        match end.stop_reason:
            case wire.STOP_REASON_CANCELLED if self._is_stored and self._open_question_calls:
                raise CommandError(
                    f"{self._agent_name} asked something that could not be answered, and the turn "
                    "was stopped; ask again at a terminal, with another key"
                )
            case wire.STOP_REASON_CANCELLED:
                print_to_stderr("crabtalk: the turn was stopped; what was said by then is kept")
                return 130
            case wire.STOP_REASON_MAX_ITERATIONS:
                raise CommandError(
                    f"{self._agent_name} used up its steps before it was done; ask it to go on, "
                    "or raise max_iterations in its file"
                )
            case wire.STOP_REASON_NO_ACTION:
                raise CommandError(f"the model said nothing; ask {self._agent_name} again")
            case wire.STOP_REASON_LENGTH:
                print_to_stderr("the model's limit cut this answer off; ask it to go on")
        return 0


def can_answer() -> bool:
    """Whether a person can read a question on stderr and answer it on stdin."""
    return has_terminal() and sys.stderr is not None and sys.stderr.isatty()


def is_unattended_refusal(result: "wire.ToolResultEvent") -> bool:
    """Whether a call was refused because it needs an approval and the turn is unattended."""
    return (
        result.is_error and result.output.startswith(DENIAL_PREFIX) and ALLOW_FLAG in result.output
    )


def format_refusal(tools: list[str]) -> str:
    names = list(dict.fromkeys(map(to_one_line, tools)))
    was = "was" if len(names) == 1 else "were"
    return (
        f"{', '.join(names)} {was} not allowed: that needs an approval, and without a terminal "
        f"there is none; `crabtalk ask {ALLOW_FLAG}` runs it without asking"
    )


def get_shutdown_reason(error: Exception) -> str | None:
    """Return why a daemon leaves a turn, without its advice; None for any other error."""
    from crabtalk.client import ServerError

    if isinstance(error, ServerError) and error.code == 503:
        return error.message.partition("; ")[0]
    return None
