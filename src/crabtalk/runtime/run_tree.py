"""RunTree: a run and all runs that it delegated, counted together.

A delegated run, a background task and the runs they delegate belong to the tree of the root run.
Depth and width bound one call; the tree bounds all of them, so that no message can cause thousands
of model calls.
"""

from typing import TYPE_CHECKING

from .errors import RuntimeRefusalError
from .limits import RuntimeLimits

if TYPE_CHECKING:
    from .run import Run


class TreeLimitError(RuntimeRefusalError):
    """A turn and the runs it delegated have reached a limit for one turn."""


class RunTree:
    """Counts the runs, model calls and tokens of one turn. `root` is the run that a person or an
    event started."""

    __slots__ = ("model_calls", "root", "runs", "tokens")

    def __init__(self, root: "Run") -> None:
        self.root = root
        self.runs = 0
        self.model_calls = 0
        self.tokens = 0

    def add_run(self, limits: RuntimeLimits) -> None:
        """Raises TreeLimitError when the tree has the maximum number of runs already."""
        if self.runs >= limits.tree_runs:
            raise tree_limit_error(f"started {self.runs} runs", "tree_runs")
        self.runs += 1

    def add_model_call(self, limits: RuntimeLimits) -> None:
        """Called before each request to a model. Raises TreeLimitError when a limit is reached."""
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
