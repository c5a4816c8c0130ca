"""bash: the tool that runs shell commands, its settings and its sandbox.

Commands run as the daemon's user. Only the sandbox separates them from the rest of the machine,
and only if the agent's file asks for it. crabtalk.policy decides which commands a run may use.
"""

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from crabtalk.environment import build_child_environment
from crabtalk.policy import find_caller_sandbox
from crabtalk.runtime import ToolDispatch, ToolError, ToolOutput
from crabtalk.storage import Agent, AgentError

from . import process_group
from .tool import AgentTool, ToolHook
from .tool_schema import HIDDEN_FROM_MODEL

DEFAULT_TIMEOUT = 120.0
MAX_TIMEOUT = 3600.0  # seconds; longer timeouts are reduced to this
# Bytes of a result as JSON. Results of this size, plus an error message, are not truncated by the
# engine.
MAX_RESULT_BYTES = 60 * 1024

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class BashSettings(msgspec.Struct, frozen=True):
    """An agent's [hooks.bash]."""

    disabled: bool = False
    deny: tuple[str, ...] = ()
    sandbox: Literal["off", "bwrap"] = "off"
    timeout: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT)] = DEFAULT_TIMEOUT
    allow_senders: tuple[str, ...] = ()
    env: tuple[str, ...] = ()

    @classmethod
    def from_agent(cls, agent: Agent) -> "BashSettings":
        """Raises AgentError for invalid settings."""
        try:
            settings = msgspec.convert(agent.hooks.get("bash", {}), cls)
        except msgspec.ValidationError as error:
            raise AgentError(f"hooks.bash: {error}") from None
        if settings.deny:
            from crabtalk.policy.shell.rules import is_deny_entry  # late: few agents need it
        for entry in settings.deny:
            if not is_deny_entry(entry):
                raise AgentError(
                    f"hooks.bash: {entry!r} in deny is not a plain command; write a program and "
                    'words of its arguments, such as "git push"'
                )
        if settings.env:
            from crabtalk.policy.environment_variables import (
                is_variable_name,  # late: few agents need it
            )
        for name in settings.env:
            if not is_variable_name(name):
                raise AgentError(
                    f"hooks.bash: {name!r} in env is not the name of a variable; write names only, "
                    'such as env = ["GITHUB_TOKEN"]'
                )
        return settings

    def tighten_by(self, caller: "BashSettings") -> "BashSettings":
        """Return the settings for a run that an agent with the settings `caller` delegated."""
        return msgspec.structs.replace(
            self,
            disabled=self.disabled or caller.disabled,
            deny=(*caller.deny, *self.deny),
            sandbox=self.sandbox if caller.sandbox == "off" else caller.sandbox,
            env=tuple(name for name in self.env if name in caller.env),
        )


class BashTool(AgentTool):
    """Run a bash command; it leaves nothing in the background."""

    name: ClassVar[str] = "bash"
    kind: ClassVar[str] = "shell"
    target: ClassVar[str] = "command"

    command: str
    env: Annotated[dict[str, str], HIDDEN_FROM_MODEL] = msgspec.field(default_factory=dict)
    timeout: Annotated[Seconds, msgspec.Meta(description="seconds")] | None = None

    async def run(self, call: ToolDispatch, hook: "BashHook") -> str:
        """Run the command. When this is cancelled, the command's whole process group is killed."""
        settings = hook.get_effective_settings(call)
        check_variables(self.env)
        timeout = min(self.timeout or settings.timeout, MAX_TIMEOUT)
        argv = [find_program("bash") or "/bin/bash", "-c", self.command]
        env = build_child_environment(settings.env)
        if settings.sandbox == "bwrap":
            box = find_caller_sandbox(call.run) or call.cwd
            argv = [*build_sandbox_command(box, call.cwd, hook.hidden, self.env), *argv]
        else:
            env |= self.env
        try:
            outcome = await process_group.run_command(argv, cwd=call.cwd, env=env, seconds=timeout)
        except process_group.CommandStartError as error:
            raise build_bash_error(str(error)) from None
        if outcome.timed_out:
            raise build_bash_error(
                f"it took longer than {timeout:g} s and was ended, with all it had started; "
                "give it more time, or less to do.",
                outcome,
            )
        if settings.sandbox == "bwrap" and is_sandbox_failure(outcome):
            raise build_bash_error("the sandbox could not be set up, see stderr.", outcome)
        return format_outcome(outcome)


class BashHook(ToolHook):
    """Holds the bash settings of every agent.

    The sandbox hides the directories in `hidden`: their sockets would let a command escape.
    """

    tools = (BashTool,)

    def __init__(self, hidden: Sequence[Path] = ()) -> None:
        self.hidden = tuple(hidden)
        self._settings: dict[str, BashSettings] = {}

    def get_settings(self, agent: str) -> BashSettings:
        return self._settings.get(agent, BashSettings())

    def get_effective_settings(self, call: ToolDispatch) -> BashSettings:
        """Return the settings of the call's agent, tightened by those of all its callers."""
        settings = self.get_settings(call.agent)
        for caller in reversed(call.run.caller_agents):
            settings = settings.tighten_by(BashSettings.from_agent(caller))
        return settings

    def on_build_agent(self, agent: Agent) -> Agent:
        BashSettings.from_agent(agent)
        return agent

    def on_register_agent(self, name: str, agent: Agent) -> None:
        self._settings[name] = BashSettings.from_agent(agent)

    def on_unregister_agent(self, name: str) -> None:
        self._settings.pop(name, None)

    def scoped_tools(self, agent: Agent) -> tuple[list[str], str | None]:
        settings = BashSettings.from_agent(agent)
        if settings.disabled:
            return [], None
        denied = ", ".join(settings.deny)
        return [BashTool.name], f"<bash-policy>denied: {denied}</bash-policy>" if denied else None

    def dispatch(self, call: ToolDispatch) -> Awaitable[str | ToolOutput] | None:
        return self._run_if_enabled(call) if call.name == BashTool.name else None

    async def _run_if_enabled(self, call: ToolDispatch) -> str | ToolOutput:
        if self.get_effective_settings(call).disabled:
            raise ToolError("tool not available: bash")
        return await self._run(BashTool, call)


def check_variables(env: Mapping[str, str]) -> None:
    """Raises ToolError for a variable that could run code the command does not show."""
    if env:
        from crabtalk.policy.environment_variables import (
            can_change_programs,  # late: few calls set any
        )
    for name in env:
        if can_change_programs(name):
            raise ToolError(
                f"permission denied: env may not set {name[:80]!r}, which can change what runs; "
                "leave it out, or set it in the command itself"
            )


def find_program(program: str) -> str | None:
    import shutil  # late: it imports all compression modules

    return shutil.which(program)


def build_sandbox_command(
    box: Path, cwd: Path, hidden: Sequence[Path], env: Mapping[str, str]
) -> list[str]:
    """Return the bwrap command line to put before a command.

    The sandboxed command can read everything, can write to `box` and an empty /tmp, and has no
    network. It starts in `cwd`, which may be outside `box`. `env` is set inside the sandbox only:
    bwrap itself runs outside and must not be influenced by the model. Raises ToolError if bwrap is
    missing or `box` is the root directory.
    """
    bwrap = find_program("bwrap")
    if bwrap is None:
        raise build_bash_error(
            "the agent's file asks for a sandbox, and bwrap is not installed; install the package "
            'bubblewrap, or set sandbox = "off" in [hooks.bash].'
        )
    if box == Path(box.anchor):
        raise build_bash_error(
            f"a sandbox that may write {box} is none; work in another directory."
        )
    # No --new-session: the process group has a session already, and in another one its signals
    # would not reach the command. --unshare-net does not cover sockets in the file system, so the
    # directories where they usually are, /tmp and /run, are empty as well.
    argv = [bwrap, "--die-with-parent", "--unshare-net", "--unshare-pid", "--unshare-ipc"]
    # With root's capabilities a command could remount everything writable.
    argv += ["--cap-drop", "ALL"]
    argv += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    argv += ["--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108 - private to the sandbox
    argv += ["--bind", str(box), str(box)]
    for directory in hidden:
        if not box.is_relative_to(directory) and directory.is_dir():
            argv += ["--tmpfs", str(directory)]
    for name, value in env.items():
        argv += ["--setenv", name, value]
    return [*argv, "--chdir", str(cwd), "--"]


def is_sandbox_failure(outcome: process_group.CommandOutcome) -> bool:
    """Whether bwrap itself failed, not the command in the sandbox."""
    return outcome.exit_code == 1 and outcome.stderr.text()[0].startswith("bwrap: ")


def build_bash_error(
    sentence: str, outcome: process_group.CommandOutcome | None = None
) -> ToolError:
    outcome = outcome or process_group.CommandOutcome(
        process_group.OutputBuffer(), process_group.OutputBuffer(), -1
    )
    return ToolError(f"bash failed: {sentence}\n{format_outcome(outcome)}")


def format_outcome(outcome: process_group.CommandOutcome) -> str:
    """Encode as JSON of at most MAX_RESULT_BYTES.

    Both streams are shortened until it fits: one byte of output can take six bytes in JSON.
    """
    limit = process_group.MAX_KEPT_BYTES
    while len(text := encode_outcome(outcome, limit)) > MAX_RESULT_BYTES:
        limit = limit * 3 // 4
    return text.decode()


def encode_outcome(outcome: process_group.CommandOutcome, limit: int) -> bytes:
    stdout, stdout_cut = outcome.stdout.text(limit)
    stderr, stderr_cut = outcome.stderr.text(limit)
    result: dict[str, Any] = {
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": outcome.exit_code,
    }
    cut = {"stdout": stdout_cut, "stderr": stderr_cut}
    if any(cut.values()):
        result["cut"] = {name: missing for name, missing in cut.items() if missing}
    return msgspec.json.encode(result)
