"""The status line: agent, model, context, cost and state.

If there is no room for all parts, the least important are left out first.
"""

from typing import Literal, NamedTuple

from prompt_toolkit.utils import get_cwidth

from crabtalk.cli.options import RISKY_MODE
from crabtalk.service.command_line import format_count, to_one_line

from .form import StyledLine, truncate_text

StatusState = Literal["ready", "running", "compacting", "stopping", "asking", "away"]

SEPARATOR = " · "
METER_WIDTH = 8  # cells
# Share of the model's context. Usage is only known for accepted requests, and the next answer needs
# room too.
NEARLY_FULL = 3 / 4


class StatusLine(NamedTuple):
    agent: str
    model: str = ""
    context: int = 0  # tokens; 0 before the first turn
    compact_at: int = 0  # tokens; 0: never suggest /compact
    cost: str = ""  # of the session; empty if prices are not known
    state: StatusState = "ready"
    seconds: float = 0  # since the run or the compaction began
    waiting: int = 0  # messages that wait for the run to end
    hint: str = ""  # what a key does at the moment
    stops: str = "Esc"  # the key that stops the run
    limit: int = 0  # the model's context in tokens; 0 if not known
    mode: str = ""  # permission mode; empty if the daemon has no modes
    approvals: int = 0  # approvals that wait in conversations of other people

    @property
    def is_context_full(self) -> bool:
        """Whether to suggest /compact. Never if the user has switched that off."""
        is_near = 0 < self.limit * NEARLY_FULL <= self.context
        return self.compact_at > 0 and (is_near or self.context >= self.compact_at)

    def render_line(self, width: int) -> StyledLine:
        """Render the line, at most `width` columns."""
        parts = self._build_parts()
        while len(parts) > 1 and measure_parts(parts) > width:
            parts.remove(min(parts))
        line: StyledLine = []
        for _, _, style, text in sorted(parts, key=lambda part: part[1]):
            if line:
                line.append(("class:status", SEPARATOR))
            line.append((style, text))
        if measure_parts(parts) > width:
            return [(style, truncate_text(text, width)) for style, text in line[:1]]
        return line

    def _build_parts(self) -> list[tuple[int, int, str, str]]:
        """Return importance, position, style and text of each part."""
        parts = [
            (5, 0, "class:status.agent", to_one_line(self.agent, 24)),
            (9, 5, self._state_style, self._state_text),
        ]
        if self.mode:
            style = "class:status.auto" if self.mode == RISKY_MODE else "class:status"
            parts.append((8, 1, style, f"{to_one_line(self.mode, 20)} mode"))
        if self.model:
            parts.append((2, 2, "class:status", to_one_line(self.model, 28)))
        if self.context:
            style = "class:status.full" if self.is_context_full else "class:status"
            parts.append((4, 3, style, self._context_text))
        if self.is_context_full:
            parts.append((6, 4, "class:status.full", "/compact"))
        if self.cost:
            parts.append((3, 4, "class:status", self.cost))
        if self.waiting:
            parts.append((7, 6, "class:status", f"{self.waiting} waiting"))
        if self.approvals:
            approvals_text = f"{format_count(self.approvals, 'approval')}: /approvals"
            parts.append((7, 7, "class:status.hint", approvals_text))
        if self.hint:
            parts.append((8, 8, "class:status.hint", self.hint))
        return parts

    @property
    def _context_text(self) -> str:
        bounds = [bound for bound in (self.compact_at, self.limit) if bound]
        if not bounds:
            return f"{format_tokens(self.context)} tokens"
        share = min(self.context / min(bounds), 1)
        filled = round(share * METER_WIDTH)
        meter = "█" * filled + "░" * (METER_WIDTH - filled)
        return f"{meter} {format_tokens(self.context)}/{format_tokens(min(bounds))}"

    @property
    def _state_text(self) -> str:
        match self.state:
            case "running":
                return f"{format_duration(self.seconds)} {self.stops} stops"
            case "compacting":
                return f"compacting {format_duration(self.seconds)} {self.stops} stops"
            case "stopping":
                return "stopping"
            case "asking":
                return "a question waits: Enter"
            case "away":
                return "no daemon"
        return "ready"

    @property
    def _state_style(self) -> str:
        return {"away": "class:status.full", "asking": "class:status.hint"}.get(
            self.state, "class:status"
        )


def measure_parts(parts: list[tuple[int, int, str, str]]) -> int:
    return sum(get_cwidth(text) for *_, text in parts) + len(SEPARATOR) * (len(parts) - 1)


def format_tokens(tokens: int) -> str:
    """Format a count with at most three digits: 950, 1.2k, 128k, 1.1M."""
    for size, unit in ((1_000_000, "M"), (1000, "k")):
        if tokens >= size:
            number = tokens / size
            return f"{number:.1f}{unit}" if number < 10 else f"{number:.0f}{unit}"
    return str(tokens)


def format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"
