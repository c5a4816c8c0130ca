"""RunTree: a run and all that came of it, counted together and ended together.

A delegated run, a task in the background and what those delegate belong to the tree of the run at
the root. Depth and width bound one call; the tree bounds all of them, so that no message can set
off thousands of model calls.
"""

from typing import TYPE_CHECKING

from .errors import RuntimeRefusalError
from .limits import RuntimeLimits

if TYPE_CHECKING:
    from .run import Run


class TreeLimitError(RuntimeRefusalError):
    """A turn and what it delegated have used up what one turn may use."""


class RunTree:
    """Counts what the runs of one turn use. `root` is the run that a person or an event started."""

    __slots__ = ("model_calls", "root", "runs", "tokens")

    def __init__(self, root: "Run") -> None:
        self.root = root
        self.runs = 0
        self.model_calls = 0
        self.tokens = 0

    def add_run(self, limits: RuntimeLimits) -> None:
        """Raises TreeLimitError when the tree has as many runs as it may have."""
        if self.runs >= limits.tree_runs:
            raise tree_limit_error(f"started {self.runs} runs", "tree_runs")
        self.runs += 1

    def add_model_call(self, limits: RuntimeLimits) -> None:
        """Called before each request to a model. Raises TreeLimitError instead of the next one."""
        if self.model_calls >= limits.tree_model_calls:
            raise tree_limit_error(f"made {self.model_calls} model calls", "tree_model_calls")
        if self.tokens >= limits.tree_tokens:
            raise tree_limit_error(f"used {self.tokens} tokens", "tree_tokens")
        self.model_calls += 1

    def add_tokens(self, count: int) -> None:
        self.tokens += count


def tree_limit_error(used: str, key: str) -> TreeLimitError:
    return TreeLimitError(
        f"this turn and the tasks it delegated {used}, the most one turn may; ask for less at a "
        f"time, or raise {key} in [limits] of config.toml"
    )
