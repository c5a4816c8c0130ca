"""ask_user: the tool with which an agent asks its user a question."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from crabtalk.runtime import AskOption, AskQuestion, ToolDispatch, ToolError

from .ask_registry import AskRegistry
from .tool import AgentTool, ToolHook


class AskUserOption(msgspec.Struct):
    label: str
    description: str = ""


class AskUserQuestion(msgspec.Struct):
    question: str
    header: str
    # The schema shows plain labels only; options with a description are accepted too.
    options: list[str | AskUserOption] = []
    multi_select: bool = False


class AskUserTool(AgentTool):
    """Ask the user, and wait."""

    name: ClassVar[str] = "ask_user"
    kind: ClassVar[str] = "question"
    questions: Annotated[list[AskUserQuestion], Meta(min_length=1)]

    async def run(self, call: ToolDispatch, hook: "AskUserHook") -> str:
        reply = await hook.asks.wait_for_reply(call.run)
        if reply is None:
            headers = ", ".join(question.header for question in self.questions)
            raise ToolError(f"no answer within {hook.asks.deadline:g} s: {headers}")
        return reply


class AskUserHook(ToolHook):
    tools: ClassVar[tuple[type[AgentTool], ...]] = (AskUserTool,)

    def __init__(self, asks: AskRegistry) -> None:
        self.asks = asks

    def list_questions(self, call: ToolDispatch) -> list[AskQuestion]:
        """Return the questions of a call. A call that does not parse has none: it fails later,
        when it is run."""
        if call.name != AskUserTool.name:
            return []
        try:
            tool = AskUserTool.parse(call.arguments)
        except ToolError:
            return []
        return [
            AskQuestion(
                question=entry.question,
                header=entry.header,
                options=tuple(
                    AskOption(o) if isinstance(o, str) else AskOption(o.label, o.description)
                    for o in entry.options
                ),
                multi_select=entry.multi_select,
            )
            for entry in tool.questions
        ]
