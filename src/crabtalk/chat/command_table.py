"""Names and descriptions of the chat's commands. Their functions are in commands.py."""

from typing import Literal, NamedTuple

ArgumentKind = Literal["", "agent", "model", "command", "file", "mode"]


class SlashCommand(NamedTuple):
    """`parameters` is the usage text after the name; `argument_kind` says how Tab completes it."""

    name: str
    about: str
    parameters: str = ""
    argument_kind: ArgumentKind = ""

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.parameters}".rstrip()


COMMANDS = {
    command.name: command
    for command in (
        SlashCommand("help", "what can be typed here", "[COMMAND]", "command"),
        SlashCommand("agents", "the agents there are"),
        SlashCommand("agent", "talk to another agent", "NAME", "agent"),
        SlashCommand("guest", "have another agent answer, here, once", "NAME TEXT", "agent"),
        SlashCommand("new", "begin afresh; what was said can be searched"),
        SlashCommand("compact", "fold what was said into a summary"),
        SlashCommand("archives", "what was folded, or the summary of one", "[NUMBER]"),
        SlashCommand("search", "find what was said in any conversation", "WORDS"),
        SlashCommand("history", "what was said last; 20 messages, or COUNT", "[COUNT]"),
        SlashCommand("memory", "what this agent remembers, all or of WORDS", "[WORDS]"),
        SlashCommand("skills", "the skills there are; /NAME uses one"),
        SlashCommand("model", "the models there are, or make one active", "[NAME]", "model"),
        SlashCommand("mode", "what runs without asking, or set it", "[MODE]", "mode"),
        SlashCommand("approvals", "review calls that other people's runs wait for you to allow"),
        SlashCommand("mcp", "this agent's MCP servers, and how they are"),
        SlashCommand("events", "what agents did lately, and what sets them off"),
        SlashCommand("title", "this conversation's title, or another one", "[WORDS]"),
        SlashCommand("cost", "tokens and money spent in this chat"),
        SlashCommand("export", "write this conversation to .md, .json or .html", "[FILE]", "file"),
        SlashCommand("quit", "leave; the daemon keeps everything"),
    )
}
