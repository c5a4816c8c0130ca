"""The commands of the chat, as people read them. What they do is in commands.py."""

from typing import Literal, NamedTuple

Takes = Literal["", "agent", "model", "command", "file", "mode"]


class Command(NamedTuple):
    """`words` is what may follow its name; `takes` what the first of them names."""

    name: str
    about: str
    words: str = ""
    takes: Takes = ""

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.words}".rstrip()


COMMANDS = {
    command.name: command
    for command in (
        Command("help", "what can be typed here", "[COMMAND]", "command"),
        Command("agents", "the agents there are"),
        Command("agent", "talk to another agent", "NAME", "agent"),
        Command("guest", "have another agent answer, here, once", "NAME TEXT", "agent"),
        Command("new", "begin afresh; what was said can be searched"),
        Command("compact", "fold what was said into a summary"),
        Command("archives", "what was folded, or the summary of one", "[NUMBER]"),
        Command("search", "find what was said in any conversation", "WORDS"),
        Command("history", "what was said last; 20 messages, or COUNT", "[COUNT]"),
        Command("memory", "what this agent remembers, all or of WORDS", "[WORDS]"),
        Command("skills", "the skills there are; /NAME uses one"),
        Command("model", "the models there are, or make one active", "[NAME]", "model"),
        Command("mode", "what runs without asking, or set it", "[MODE]", "mode"),
        Command("approvals", "review calls that other people's runs wait for you to allow"),
        Command("mcp", "this agent's MCP servers, and how they are"),
        Command("events", "what agents did lately, and what sets them off"),
        Command("title", "this conversation's title, or another one", "[WORDS]"),
        Command("cost", "tokens and money spent in this chat"),
        Command("export", "write this conversation to .md, .json or .html", "[FILE]", "file"),
        Command("quit", "leave; the daemon keeps everything"),
    )
}
