"""The status line: who answers, how full the context is, what it costs, what goes on.

Parts leave it when there is no room for them, the least needed first.
"""

from typing import Literal, NamedTuple

from prompt_toolkit.utils import get_cwidth

from crabtalk.cli.options import RISKY_MODE
from crabtalk.service.command_line import format_count, to_one_line

from .form import StyledLine, truncate_text

StatusState = Literal["ready", "running", "compacting", "stopping", "asking", "away"]

SEPARATOR = " · "
METER_WIDTH = 8  # cells
# Of what the model reads. What it refuses is never counted, and the next answer needs room too.
NEARLY_FULL = 3 / 4


class StatusLine(NamedTuple):
    agent: str
    model: str = ""
    context: int = 0  # tokens; 0 before the first turn
    compact_at: int = 0  # tokens; 0 when the user has set no bound
    cost: str = ""  # of the session; empty when prices are not known
    state: StatusState = "ready"
    seconds: float = 0  # that the run, or the compaction, has taken
    waiting: int = 0  # messages that wait for the run to end
    hint: str = ""  # what a key does just now; stands in for the rest
    stops: str = "Esc"  # the key that does
    limit: int = 0  # tokens the model reads at once; 0 where that is not known
    mode: str = ""  # what runs without asking; empty where the daemon has no modes
    approvals: int = 0  # that wait in conversations of other people

    @property
    def is_context_full(self) -> bool:
        """Whether it is time to fold. Never for a user who does not want to be told."""
        is_near = 0 < self.limit * NEARLY_FULL <= self.context
        return self.compact_at > 0 and (is_near or self.context >= self.compact_at)

    def render_line(self, width: int) -> StyledLine:
        """Never wider than `width`."""
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
        """How much each is needed, its place, its style, and its text."""
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
            waits = f"{format_count(self.approvals, 'approval')}: /approvals"
            parts.append((7, 7, "class:status.hint", waits))
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
    """As short as it is still told apart: 950, 1.2k, 128k, 1.1M."""
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
