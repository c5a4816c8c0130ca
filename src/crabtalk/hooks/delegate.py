"""delegate: an agent has others do part of its work, side by side, each in its own conversation.

A delegated run acts in the name of whoever set all of it off, and knows the run and the call it
came from. Killing the caller kills it; a task in the background goes on.
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
    Access,
    Parent,
    Run,
    Runtime,
    RuntimeRefusalError,
    StopReason,
    ToolDispatch,
    ToolError,
    require_whole,
)
from crabtalk.storage import Agent

from .tool import Tool, ToolHook

WORKER = "worker"
PROMPT = (
    "You carry out one task for another agent. Do it with the tools you have, ask nobody, and "
    "answer with the result alone: what you found or did, and what is left open."
)


@dataclass(frozen=True, slots=True)
class DelegateLimits:
    # How many runs may stand above one another.
    delegate_depth: int = 3
    # Tasks in one call.
    delegate_width: int = 16

    def __post_init__(self) -> None:
        require_whole(self)


class Task(msgspec.Struct):
    message: str
    agent: str = ""
    system_prompt: str | None = None
    cwd: str | None = None


class Delegate(Tool):
    """Have agents do tasks in parallel."""

    name: ClassVar[str] = "delegate"
    kind: ClassVar[str] = "delegate"
    tasks: Annotated[list[Task], Meta(min_length=1)]
    background: bool = False

    async def run(self, call: ToolDispatch, hook: "DelegateHook") -> str:
        started = hook.start(call, self.tasks)
        if self.background:
            hook.keep(started)
            return json.dumps([{"agent": d.agent, "task_id": d.run.pair.sender} for d in started])
        try:
            results = await asyncio.gather(*(delegated.result() for delegated in started))
        finally:
            for delegated in started:
                delegated.run.kill()
                hook.dismiss(delegated)
        return json.dumps(results, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Delegated:
    """A task that runs. `agent` is what the caller called it, `made` whether it was made for it."""

    agent: str
    run: Run
    made: bool

    async def result(self) -> dict[str, str | None]:
        done = await self.run.wait()
        error: str | None = done.error or None
        if done.reason is StopReason.CANCELLED:
            error = "it was cancelled"
        elif not error and not done.text:
            error = f"it said nothing ({done.reason.value})"
        return {"agent": self.agent, "result": done.text or None, "error": error}


class DelegateHook(ToolHook):
    tools: ClassVar[tuple[type[Tool], ...]] = (Delegate,)

    def __init__(
        self, runtime: Callable[[], Runtime], limits: DelegateLimits | None = None
    ) -> None:
        self._runtime = runtime
        self._limits = limits or DelegateLimits()
        self._background: set[asyncio.Task[None]] = set()

    def access(self, call: ToolDispatch) -> Access:
        """The other agents it would start, beside workers and itself."""
        try:
            tasks = Delegate.parse(call.arguments).tasks
        except ToolError:
            return Access(Delegate.kind)
        known = self._runtime().agents
        others = {task.agent for task in tasks if task.agent in known} - {call.agent}
        return Access(Delegate.kind, ", ".join(sorted(others)))

    def start(self, call: ToolDispatch, tasks: list[Task]) -> list[Delegated]:
        """All of them, or none. Raises ToolError."""
        if call.run.killed:
            raise ToolError("the run was stopped; nothing more is started")
        depth = call.run.parent.depth + 1 if call.run.parent is not None else 1
        if depth > self._limits.delegate_depth:
            raise ToolError(f"at most {self._limits.delegate_depth} agents deep; do it yourself")
        if len(tasks) > self._limits.delegate_width:
            raise ToolError(f"at most {self._limits.delegate_width} tasks in one call")
        places = [self._place(call, task) for task in tasks]
        started: list[Delegated] = []
        try:
            for number, (task, cwd) in enumerate(zip(tasks, places, strict=True)):
                started.append(self._start(call, task, cwd, depth, number))
        except RuntimeRefusalError as error:
            for delegated in started:
                delegated.run.kill()
                self.dismiss(delegated)
            raise ToolError(str(error)) from None
        return started

    def _place(self, call: ToolDispatch, task: Task) -> Path:
        """The task's directory: its caller's, or one inside of it."""
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

    def _start(
        self, call: ToolDispatch, task: Task, cwd: Path, depth: int, number: int
    ) -> Delegated:
        runtime = self._runtime()
        token = os.urandom(6).hex()  # never given out twice, so that no task resumes another's
        name = task.agent or WORKER
        made = task.system_prompt is not None or (name == WORKER and name not in runtime.agents)
        if made:
            name = f"{name}:{token}"
            runtime.adopt(self._make(call, name, task.system_prompt or PROMPT))
        parent = Parent(
            call.run.pair,
            call.run.id,
            call.call_id,
            call.run.origin,
            keeper=call.run.keeper if made else "",
            depth=depth,
            task=number,
            lineage=(*call.run.lineage, runtime.written(call.agent)),
            directories=(*call.run.directories, call.cwd),
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
                chain=call.run.chain,  # a circle of events does not hide behind a task
            )
        except RuntimeRefusalError:
            if made:
                runtime.dismiss(name)
            raise
        return Delegated(task.agent or WORKER, run, made)

    def _make(self, call: ToolDispatch, name: str, prompt: str) -> Agent:
        """Made for one task: all its caller is, and may do, but for what it is told."""
        caller = self._runtime().written(call.agent)
        # Its servers are its caller's: the same declarations are the same peers.
        return msgspec.structs.replace(caller, name=name, prompt=prompt, description="")

    def keep(self, started: list[Delegated]) -> None:
        """They go on without their caller."""
        for delegated in started:
            task = asyncio.ensure_future(self._see_out(delegated))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _see_out(self, delegated: Delegated) -> None:
        await delegated.run.wait()
        self.dismiss(delegated)

    def dismiss(self, delegated: Delegated) -> None:
        if delegated.made:
            self._runtime().dismiss(delegated.run.pair.agent)
