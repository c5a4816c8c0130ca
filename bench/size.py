"""Start-up and size: how soon a daemon answers and why not sooner, what it weighs and what of it is
whose, what is downloaded to install it, and how much of others comes along.

Wheels are built here, by the build backend; nothing is fetched.
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

from .footprint import first_pong
from .peers import percentile, rss
from .report import Table

ROOT = Path(__file__).resolve().parents[1]
CRABTALKD = Path(sys.executable).with_name("crabtalkd")
STARTS = 20
RUNS = 5
SHOWN = 14
# A line of -X importtime: its own microseconds, those with what it imports, depth and name.
IMPORT = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|( +)(\S+)")
# Of the standard library, shown for themselves.
NAMED = ("asyncio", "email", "importlib", "inspect", "json", "logging", "ssl", "_ssl", "typing")
# What a daemon is made of, from the interpreter up. Each is loaded after those before it.
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
    "ours: the daemon": "import crabtalk.daemon.daemon, crabtalk.daemon.server",
}
MEASURE = """
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
def started(home: Path, *python: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon that is ready; what it says is on its stderr."""
    command = [sys.executable, *python, str(CRABTALKD), "run", "--home", str(home), "--tcp", "off"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def cpu_ms(pid: int) -> float:
    """What its main thread has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def at_rest(home: Path) -> tuple[float, float]:
    """CPU until it is ready, and resident memory once it has settled."""
    with started(home) as process:
        assert process.stderr is not None
        assert "is ready" in process.stderr.readline()
        cpu = cpu_ms(process.pid)
        settled = cpu_ms(process.pid)
        while True:
            time.sleep(0.2)
            settled, before = cpu_ms(process.pid), settled
            if settled == before:
                return cpu, rss(process.pid)


def start_up() -> Table:
    table = Table("A daemon at rest", ["", "median", "worst", "budget"])
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        first_pong(home)  # warm the page cache
        pongs = [first_pong(home) for _ in range(STARTS)]
        rests = [at_rest(home) for _ in range(RUNS)]
    for name, samples, budget in (
        ("process start to first pong, ms", pongs, "250"),
        ("CPU until it is ready, ms", [cpu for cpu, _ in rests], ""),
        ("resident, MB", [size for _, size in rests], "45"),
    ):
        digits = 1 if "MB" in name else 0
        table.row(
            name,
            f"{percentile(samples, 0.5):.{digits}f}",
            f"{max(samples):.{digits}f}",
            budget,
        )
    table.note = f"{STARTS} starts to a pong, {RUNS} to the other two, with compiled bytecode."
    return table


# ── What it loads ──────────────────────────────────────────────────────────────────────────────


def imports(home: Path) -> dict[str, int]:
    """Microseconds that each module takes for itself, of all that is loaded before it is ready."""
    found = {}
    with started(home, "-X", "importtime") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "is ready" in line:
                break
            if match := IMPORT.match(line):
                found[match[4]] = int(match[1])
    return found


def package_of(module: str) -> str:
    first, _, rest = module.partition(".")
    if first == "crabtalk":
        return f"crabtalk.{rest.partition('.')[0]}" if rest else first
    if first == "google":
        return "protobuf"
    if first in sys.stdlib_module_names and first not in NAMED:
        return "the rest of the standard library"
    return {"_ssl": "ssl"}.get(first, first)


def import_time() -> Table:
    with tempfile.TemporaryDirectory() as scratch:
        runs = [imports(Path(scratch) / "home") for _ in range(RUNS)]
    least: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for module in runs[0]:
        package = package_of(module)
        least[package] += min(run.get(module, 0) for run in runs)
        count[package] += 1
    total = least.total()
    table = Table("What a start loads, ms", ["", "modules", "own time", "share"])
    for name, spent in least.most_common(SHOWN):
        table.row(name, str(count[name]), f"{spent / 1000:.1f}", f"{spent / total:.0%}")
    table.row("all", str(count.total()), f"{total / 1000:.1f}", "100%")
    table.note = (
        "Before it is ready, by -X importtime, which costs time itself; of each module the least "
        f"of {RUNS} runs."
    )
    return table


def memory() -> Table:
    """Which layer takes what of the resident memory, in one process that loads them in turn."""
    runs = []
    for _ in range(RUNS):
        command = [sys.executable, "-c", MEASURE, *(code or "pass" for code in LAYERS.values())]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        runs.append([int(line) for line in said.split()])
    table = Table("Where the memory goes, MB", ["", "more than before", "in all"])
    so_far = 0.0
    for name, samples in zip(LAYERS, zip(*runs, strict=True), strict=True):
        more = percentile([float(one) for one in samples], 0.5) / 1024 / 1024
        so_far += more
        table.row(name, f"{more:.1f}", f"{so_far:.1f}")
    table.note = "Resident after each import, one after the other; what serving adds is above."
    return table


# ── What is installed ──────────────────────────────────────────────────────────────────────────


def wheel(project: Path, directory: Path) -> tuple[str, int, int]:
    """Its name, its size, and that of what it unpacks to."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    before = set(directory.iterdir())
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (path,) = set(directory.iterdir()) - before
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    return path.name.split("-")[0].replace("_", "-"), path.stat().st_size, unpacked


def requirements(name: str) -> set[str]:
    """Distributions that one asks for, here, without extras."""
    found = map(Requirement, distribution(name).requires or [])
    return {
        canonicalize_name(one.name)
        for one in found
        if one.marker is None or one.marker.evaluate({"extra": ""})
    }


def everything(name: str) -> set[str]:
    """Those, and those they ask for in turn."""
    found: set[str] = set()
    waiting = requirements(name)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting |= requirements(one)
    return found


def installed_mb(names: set[str]) -> float:
    paths = [path for name in names for path in distribution(name).files or []]
    located = (Path(str(path.locate())) for path in paths if path.suffix != ".pyc")
    return sum(path.stat().st_size for path in located if path.is_file()) / 1024 / 1024


def distributions() -> Table:
    columns = [
        "",
        "wheel KB",
        "unpacked KB",
        "asks for",
        "with theirs",
        "of others",
        "MB of others",
    ]
    table = Table("Wheels and what they bring along", columns)
    core = {"crabtalk", *everything("crabtalk")}
    with tempfile.TemporaryDirectory() as scratch:
        for project in (ROOT, *sorted(path.parent for path in ROOT.glob("apps/*/pyproject.toml"))):
            name, packed, unpacked = wheel(project, Path(scratch))
            direct, all_of_them = requirements(name), everything(name)
            others = {one for one in all_of_them if not one.startswith(("crabtalk", "crabup"))}
            extra = others if name == "crabtalk" else others - core
            table.row(
                name,
                f"{packed / 1024:.0f}",
                f"{unpacked / 1024:.0f}",
                str(len(direct)),
                str(len(all_of_them)),
                str(len(extra)),
                f"{installed_mb(extra):.1f}",
            )
    table.note = (
        "Distributions, without extras. Of others: those that are not ours, and for an app those "
        "that the daemon has not brought already; MB are without bytecode."
    )
    return table


def heaviest() -> Table:
    table = Table("What the daemon brings along, the largest", ["", "MB", "asked for by"])
    names = everything("crabtalk")
    sizes = sorted(((installed_mb({name}), name) for name in names), reverse=True)
    for size, name in sizes[:SHOWN]:
        asking = [one for one in sorted({"crabtalk", *names}) if name in requirements(one)]
        table.row(name, f"{size:.1f}", ", ".join(asking[:4]))
    rest = sizes[SHOWN:]
    table.row(f"{len(rest)} more", f"{sum(size for size, _ in rest):.1f}", "")
    return table


def run() -> list[Table]:
    return [start_up(), import_time(), memory(), distributions(), heaviest()]
