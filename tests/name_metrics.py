"""Measures how ordinary the names in a source tree are, and fails when this repository gets worse.

    python -m tests.name_metrics [DIRECTORY ...]

Without arguments it measures this repository against the limits below; `make lint` runs it so. With
directories it measures each of them (another project's checkout, say) and only prints.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = re.compile(r"_pb2\.pyi?$")
VAGUE_PRONOUNS = re.compile(r"nobody|somebody|whoever", re.IGNORECASE)
# Shares and counts that the whole repository, tests included, stays at or below.
MAX_ONE_WORD_SHARE = 0.20
MAX_REPEATED_CLASSES = 20
MAX_VAGUE_PRONOUNS = 40


@dataclass(frozen=True, slots=True)
class NameMetrics:
    modules: int
    lines: int
    functions: int  # at module level
    one_word_functions: tuple[str, ...]
    repeated_classes: tuple[str, ...]
    vague_pronouns: int

    @property
    def one_word_share(self) -> float:
        return len(self.one_word_functions) / max(1, self.functions)


def measure_names(paths: Iterable[Path]) -> NameMetrics:
    lines = functions = vague_pronouns = modules = 0
    one_word: list[str] = []
    class_names: Counter[str] = Counter()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        modules += 1
        lines += text.count("\n")
        vague_pronouns += len(VAGUE_PRONOUNS.findall(text))
        tree = ast.parse(text)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                if "_" not in node.name.strip("_"):
                    one_word.append(f"{path}:{node.lineno}: {node.name}")
        class_names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    repeated = tuple(sorted(name for name, count in class_names.items() if count > 1))
    return NameMetrics(modules, lines, functions, tuple(one_word), repeated, vague_pronouns)


def list_repository_modules() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / line for line in listed.stdout.splitlines() if not GENERATED.search(line))
    own = Path(__file__).resolve()
    return [path for path in paths if path.exists() and path.resolve() != own]


def format_row(name: str, metrics: NameMetrics) -> str:
    return (
        f"{name}: {metrics.modules} modules, {metrics.lines} lines, "
        f"{metrics.one_word_share:.1%} of {metrics.functions} module-level functions have one-word "
        f"names, {len(metrics.repeated_classes)} class names are used more than once, "
        f"{metrics.vague_pronouns} times nobody, somebody or whoever"
    )


def find_excesses(metrics: NameMetrics) -> list[str]:
    """One sentence for each exceeded limit, saying what to rename."""
    excesses = []
    if metrics.one_word_share > MAX_ONE_WORD_SHARE:
        excesses.append(
            "too many one-word function names; a verb with its object says more: "
            + ", ".join(metrics.one_word_functions)
        )
    if len(metrics.repeated_classes) > MAX_REPEATED_CLASSES:
        excesses.append(
            "too many class names that are used twice; qualify them: "
            + ", ".join(metrics.repeated_classes)
        )
    if metrics.vague_pronouns > MAX_VAGUE_PRONOUNS:
        excesses.append(
            f"{metrics.vague_pronouns} times nobody, somebody or whoever (at most "
            f"{MAX_VAGUE_PRONOUNS}): name the person or the program; `git grep -iE` finds them"
        )
    return excesses


def main(directories: list[str]) -> int:
    for directory in directories:
        print(format_row(directory, measure_names(sorted(Path(directory).rglob("*.py")))))
    if directories:
        return 0
    metrics = measure_names(list_repository_modules())
    print(format_row("this repository", metrics))
    excesses = find_excesses(metrics)
    for sentence in excesses:
        print(sentence, file=sys.stderr)
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
