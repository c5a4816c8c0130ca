"""Start-up and size: a daemon's start-up time and imports, its memory by layer, and the size of its
wheels and their dependencies.

Wheels are built here, by the build backend; nothing is downloaded.
"""

import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .footprint import time_first_pong
from .processes import compute_percentile, read_rss
from .tables import BenchTable

ROOT = Path(__file__).resolve().parents[1]
CRABTALKD = Path(sys.executable).with_name("crabtalkd")
STARTS = 20
RUNS = 5
MAX_ROWS = 14
# A line of -X importtime: own microseconds, microseconds with its imports, depth and name.
IMPORT_PATTERN = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|( +)(\S+)")
# Packages of the standard library with a row of their own.
NAMED_PACKAGES = (
    "asyncio",
    "email",
    "importlib",
    "inspect",
    "json",
    "logging",
    "ssl",
    "_ssl",
    "typing",
)
# The layers of a daemon, from the interpreter up. Each is loaded after those before it.
LAYERS = {
    "Python": "",
    "asyncio, with ssl": "import asyncio",
    "uvloop": "import uvloop",
    "click": "import click",
    "msgspec": "import msgspec.json",
    "protobuf": "from google.protobuf import descriptor_pool, symbol_database, internal",
    "ours: the wire": "import crabtalk.protocol",
    "ours: transport": "import crabtalk.transport",
    "ours: models": "import crabtalk.model",
    "ours: storage": "import crabtalk.storage",
    "ours: the engine": "import crabtalk.runtime",
    "ours: hooks, MCP": "import crabtalk.hooks",
    "ours: the daemon": "import crabtalk.daemon.daemon, crabtalk.daemon.handlers.daemon_server",
}
MEASURE_SCRIPT = """
import sys
def rss():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096
import gc
gc.disable()
before = 0
for code in sys.argv[1:]:
    exec(code)
    now = rss()
    print(now - before)
    before = now
"""


# ── The process ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def run_daemon(home: Path, *python: str) -> Iterator[subprocess.Popen[str]]:
    """Start a daemon; it reports on stderr when it is ready."""
    command = [sys.executable, *python, str(CRABTALKD), "run", "--home", str(home), "--tcp", "off"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_cpu_ms(pid: int) -> float:
    """Return the CPU milliseconds of the main thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def measure_at_rest(home: Path) -> tuple[float, float]:
    """Return the CPU time until it is ready, and the resident memory once it is idle."""
    with run_daemon(home) as process:
        assert process.stderr is not None
        assert "is ready" in process.stderr.readline()
        cpu = read_cpu_ms(process.pid)
        settled = read_cpu_ms(process.pid)
        while True:
            time.sleep(0.2)
            settled, before = read_cpu_ms(process.pid), settled
            if settled == before:
                return cpu, read_rss(process.pid)


def measure_start() -> BenchTable:
    table = BenchTable("A daemon at rest", ["", "median", "worst", "budget"])
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        time_first_pong(home)  # warm the page cache
        pongs = [time_first_pong(home) for _ in range(STARTS)]
        rests = [measure_at_rest(home) for _ in range(RUNS)]
    for name, samples, budget in (
        ("process start to first pong, ms", pongs, "250"),
        ("CPU until it is ready, ms", [cpu for cpu, _ in rests], ""),
        ("resident, MB", [size for _, size in rests], "45"),
    ):
        digits = 1 if "MB" in name else 0
        table.add_row(
            name,
            f"{compute_percentile(samples, 0.5):.{digits}f}",
            f"{max(samples):.{digits}f}",
            budget,
        )
    table.note = f"{STARTS} starts to a pong, {RUNS} to the other two, with compiled bytecode."
    return table


# ── Imports and memory ─────────────────────────────────────────────────────────────────────────


def time_imports(home: Path) -> dict[str, int]:
    """Return the own microseconds of each module loaded before the daemon is ready."""
    times = {}
    with run_daemon(home, "-X", "importtime") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "is ready" in line:
                break
            if match := IMPORT_PATTERN.match(line):
                times[match[4]] = int(match[1])
    return times


def find_package(module: str) -> str:
    first, _, rest = module.partition(".")
    if first == "crabtalk":
        return f"crabtalk.{rest.partition('.')[0]}" if rest else first
    if first == "google":
        return "protobuf"
    if first in sys.stdlib_module_names and first not in NAMED_PACKAGES:
        return "the rest of the standard library"
    return {"_ssl": "ssl"}.get(first, first)


def measure_imports() -> BenchTable:
    with tempfile.TemporaryDirectory() as scratch:
        runs = [time_imports(Path(scratch) / "home") for _ in range(RUNS)]
    minimum: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for module in runs[0]:
        package = find_package(module)
        minimum[package] += min(run.get(module, 0) for run in runs)
        count[package] += 1
    total = minimum.total()
    table = BenchTable("What a start loads, ms", ["", "modules", "own time", "share"])
    for name, spent in minimum.most_common(MAX_ROWS):
        table.add_row(name, str(count[name]), f"{spent / 1000:.1f}", f"{spent / total:.0%}")
    table.add_row("all", str(count.total()), f"{total / 1000:.1f}", "100%")
    table.note = (
        "Before it is ready, by -X importtime, which costs time itself; of each module the least "
        f"of {RUNS} runs."
    )
    return table


def measure_layers() -> BenchTable:
    """Measure the resident memory of each layer, in one process that loads them in turn."""
    runs = []
    for _ in range(RUNS):
        command = [
            sys.executable,
            "-c",
            MEASURE_SCRIPT,
            *(code or "pass" for code in LAYERS.values()),
        ]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        runs.append([int(line) for line in output.split()])
    table = BenchTable("Where the memory goes, MB", ["", "more than before", "in all"])
    total = 0.0
    for name, samples in zip(LAYERS, zip(*runs, strict=True), strict=True):
        more = compute_percentile([float(sample) for sample in samples], 0.5) / 1024 / 1024
        total += more
        table.add_row(name, f"{more:.1f}", f"{total:.1f}")
    table.note = "Resident after each import, one after the other; what serving adds is above."
    return table


# ── Wheels and dependencies ────────────────────────────────────────────────────────────────────


def build_wheel(project: Path, directory: Path) -> tuple[str, int, int]:
    """Build a wheel; return its name, its size and its unpacked size."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    before = set(directory.iterdir())
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (path,) = set(directory.iterdir()) - before
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    return path.name.split("-")[0].replace("_", "-"), path.stat().st_size, unpacked


def find_requirements(name: str) -> set[str]:
    """Return the direct requirements of a distribution on this platform, without extras."""
    requirements = map(Requirement, distribution(name).requires or [])
    return {
        canonicalize_name(requirement.name)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }


def find_all_requirements(name: str) -> set[str]:
    """Return the direct and indirect requirements of a distribution."""
    requirements: set[str] = set()
    waiting = find_requirements(name)
    while waiting:
        requirement = waiting.pop()
        if requirement not in requirements:
            requirements.add(requirement)
            waiting |= find_requirements(requirement)
    return requirements


def measure_installed(names: set[str]) -> float:
    paths = [path for name in names for path in distribution(name).files or []]
    located = (Path(str(path.locate())) for path in paths if path.suffix != ".pyc")
    return sum(path.stat().st_size for path in located if path.is_file()) / 1024 / 1024


def measure_wheels() -> BenchTable:
    columns = [
        "",
        "wheel KB",
        "unpacked KB",
        "asks for",
        "with theirs",
        "of others",
        "MB of others",
    ]
    table = BenchTable("Wheels and what they bring along", columns)
    core = {"crabtalk", *find_all_requirements("crabtalk")}
    with tempfile.TemporaryDirectory() as scratch:
        for project in (ROOT, *sorted(path.parent for path in ROOT.glob("apps/*/pyproject.toml"))):
            name, packed, unpacked = build_wheel(project, Path(scratch))
            direct, transitive = find_requirements(name), find_all_requirements(name)
            others = {
                requirement
                for requirement in transitive
                if not requirement.startswith(("crabtalk", "crabup"))
            }
            extra = others if name == "crabtalk" else others - core
            table.add_row(
                name,
                f"{packed / 1024:.0f}",
                f"{unpacked / 1024:.0f}",
                str(len(direct)),
                str(len(transitive)),
                str(len(extra)),
                f"{measure_installed(extra):.1f}",
            )
    table.note = (
        "Distributions, without extras. Of others: those that are not ours, and for an app those "
        "that the daemon has not brought already; MB are without bytecode."
    )
    return table


def list_heaviest() -> BenchTable:
    table = BenchTable("What the daemon brings along, the largest", ["", "MB", "asked for by"])
    names = find_all_requirements("crabtalk")
    sizes = sorted(((measure_installed({name}), name) for name in names), reverse=True)
    for size, name in sizes[:MAX_ROWS]:
        dependents = [
            dependent
            for dependent in sorted({"crabtalk", *names})
            if name in find_requirements(dependent)
        ]
        table.add_row(name, f"{size:.1f}", ", ".join(dependents[:4]))
    rest = sizes[MAX_ROWS:]
    table.add_row(f"{len(rest)} more", f"{sum(size for size, _ in rest):.1f}", "")
    return table


def run_benchmark() -> list[BenchTable]:
    return [measure_start(), measure_imports(), measure_layers(), measure_wheels(), list_heaviest()]
