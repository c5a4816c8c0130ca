"""delegate: the tool with which an agent starts tasks of other agents, which run in parallel.

Each task has its own conversation. A delegated run keeps the origin of the first run, and knows
the run and the call that started it. Killing the caller kills its tasks, except background tasks.
"""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from crabtalk.runtime import (
    ParentRun,
    Run,
    Runtime,
    RuntimeRefusalError,
    StopReason,
    ToolAccess,
    ToolDispatch,
    ToolError,
    require_positive_integers,
)
from crabtalk.storage import Agent

from .tool import AgentTool, ToolHook

WORKER_NAME = "worker"
WORKER_PROMPT = (
    "You carry out one task for another agent. Do it with the tools you have, ask no questions, "
    "and answer with the result alone: what you found or did, and what is left open."
)


@dataclass(frozen=True, slots=True)
class DelegateLimits:
    # Delegated runs may themselves delegate up to this depth.
    delegate_depth: int = 3
    # Tasks in one call.
    delegate_width: int = 16

    def __post_init__(self) -> None:
        require_positive_integers(self)


class DelegateTask(msgspec.Struct):
    message: str
    agent: str = ""
    system_prompt: str | None = None
    cwd: str | None = None


class DelegateTool(AgentTool):
    """Have agents do tasks in parallel."""

    name: ClassVar[str] = "delegate"
    kind: ClassVar[str] = "delegate"
    tasks: Annotated[list[DelegateTask], Meta(min_length=1)]
    background: bool = False

    async def run(self, call: ToolDispatch, hook: "DelegateHook") -> str:
        started = hook.start_tasks(call, self.tasks)
        if self.background:
            hook.keep_in_background(started)
            return json.dumps([{"agent": d.agent, "task_id": d.run.pair.sender} for d in started])
        try:
            results = await asyncio.gather(*(delegated.wait_for_result() for delegated in started))
        finally:
            for delegated in started:
                delegated.run.kill()
                hook.dismiss_agent(delegated)
        return json.dumps(results, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class StartedTask:
    """A started task. `agent` is the name the caller used; `is_agent_temporary` says whether the
    agent was created for this task."""

    agent: str
    run: Run
    is_agent_temporary: bool

    async def wait_for_result(self) -> dict[str, str | None]:
        done = await self.run.wait()
        error: str | None = done.error or None
        if done.reason is StopReason.CANCELLED:
            error = "it was cancelled"
        elif not error and not done.text:
            error = f"it said nothing ({done.reason.value})"
        return {"agent": self.agent, "result": done.text or None, "error": error}


class DelegateHook(ToolHook):
    tools: ClassVar[tuple[type[AgentTool], ...]] = (DelegateTool,)

    def __init__(
        self, runtime: Callable[[], Runtime], limits: DelegateLimits | None = None
    ) -> None:
        self._runtime = runtime
        self._limits = limits or DelegateLimits()
        self._background: set[asyncio.Task[None]] = set()

    def describe_access(self, call: ToolDispatch) -> ToolAccess:
        """Return the other agents the call would start, without workers and the caller itself."""
        try:
            tasks = DelegateTool.parse(call.arguments).tasks
        except ToolError:
            return ToolAccess(DelegateTool.kind)
        known = self._runtime().agents
        others = {task.agent for task in tasks if task.agent in known} - {call.agent}
        return ToolAccess(DelegateTool.kind, ", ".join(sorted(others)))

    def start_tasks(self, call: ToolDispatch, tasks: list[DelegateTask]) -> list[StartedTask]:
        """Start all tasks or none. Raises ToolError."""
        if call.run.is_killed:
            raise ToolError("the run was stopped; nothing more is started")
        depth = call.run.parent.depth + 1 if call.run.parent is not None else 1
        if depth > self._limits.delegate_depth:
            raise ToolError(f"at most {self._limits.delegate_depth} agents deep; do it yourself")
        if len(tasks) > self._limits.delegate_width:
            raise ToolError(f"at most {self._limits.delegate_width} tasks in one call")
        directories = [self._resolve_cwd(call, task) for task in tasks]
        started: list[StartedTask] = []
        try:
            for number, (task, cwd) in enumerate(zip(tasks, directories, strict=True)):
                started.append(self._start_task(call, task, cwd, depth, number))
        except RuntimeRefusalError as error:
            for delegated in started:
                delegated.run.kill()
                self.dismiss_agent(delegated)
            raise ToolError(str(error)) from None
        return started

    def _resolve_cwd(self, call: ToolDispatch, task: DelegateTask) -> Path:
        """Return the task's directory: its caller's, or one inside it."""
        if not task.cwd:
            return call.cwd
        path = Path(os.path.realpath(call.cwd / task.cwd))
        if not path.is_relative_to(os.path.realpath(call.cwd)):
            raise ToolError(
                f"permission denied: cwd {task.cwd!r} is outside of {call.cwd}; a task works in "
                "its caller's directory, or inside of it"
            )
        if not path.is_dir():
            raise ToolError(f"invalid arguments: cwd {task.cwd!r} is no directory")
        return path

    def _start_task(
        self, call: ToolDispatch, task: DelegateTask, cwd: Path, depth: int, number: int
    ) -> StartedTask:
        runtime = self._runtime()
        token = os.urandom(6).hex()  # unique, so that no task resumes another's conversation
        name = task.agent or WORKER_NAME
        is_temporary = task.system_prompt is not None or (
            name == WORKER_NAME and name not in runtime.agents
        )
        if is_temporary:
            name = f"{name}:{token}"
            runtime.add_temporary_agent(
                self._build_temporary_agent(call, name, task.system_prompt or WORKER_PROMPT)
            )
        parent = ParentRun(
            call.run.pair,
            call.run.id,
            call.call_id,
            call.run.origin,
            memory_owner=call.run.memory_owner if is_temporary else "",
            depth=depth,
            task=number,
            caller_agents=(*call.run.caller_agents, runtime.find_agent_definition(call.agent)),
            caller_directories=(*call.run.caller_directories, call.cwd),
            tree=call.run.tree,
        )
        try:
            run = runtime.start(
                name,
                task.message,
                sender=f"delegate:{token}",
                cwd=cwd,
                parent=parent,
                verbatim=True,
                detached=True,
                chain=call.run.event_depth,  # so that the limit of event loops applies
            )
        except RuntimeRefusalError:
            if is_temporary:
                runtime.remove_temporary_agent(name)
            raise
        return StartedTask(task.agent or WORKER_NAME, run, is_temporary)

    def _build_temporary_agent(self, call: ToolDispatch, name: str, prompt: str) -> Agent:
        """Copy the caller's definition, with another name and prompt."""
        caller = self._runtime().find_agent_definition(call.agent)
        # It shares the caller's MCP servers: equal declarations use the same peers.
        return msgspec.structs.replace(caller, name=name, prompt=prompt, description="")

    def keep_in_background(self, started: list[StartedTask]) -> None:
        """Let tasks continue after the call returned."""
        for delegated in started:
            task = asyncio.ensure_future(self._wait_and_dismiss(delegated))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _wait_and_dismiss(self, delegated: StartedTask) -> None:
        await delegated.run.wait()
        self.dismiss_agent(delegated)

    def dismiss_agent(self, delegated: StartedTask) -> None:
        if delegated.is_agent_temporary:
            self._runtime().remove_temporary_agent(delegated.run.pair.agent)
