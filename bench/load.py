"""Load: a daemon under the work of a thousand people, and more until it breaks.

    python -m bench load [--seconds N] [--against DIR] [--profile] [--steps] [--no-crowds]

`--against` also measures a daemon from the sources in DIR, alternating with this one. `--profile`
shows where the time goes, as py-spy sees it. `--steps` adds work until something fails. The load
itself is in `load_generator`.
"""

import argparse
import gc
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from tests.model_server import model_process

from .load_generator import BenchDaemon, CrowdLoad, CrowdOutcome, run_daemon, run_load
from .processes import compute_percentile, pin_to_core
from .tables import BenchTable

DEFAULT_SECONDS = 60
# Crowds that come one after the other, and the seconds of each.
CROWD_COUNT, CROWD_SECONDS = 8, 10
# Seconds of each step of `--steps`.
STEP_SECONDS = 8
# Behind by more than this, a daemon no longer keeps up.
MAX_LAG_MS = 1000.0

# ── Tables ─────────────────────────────────────────────────────────────────────────────────────


def create_crowd_table() -> BenchTable:
    return BenchTable(
        "Load: the daemon on one core",
        [
            *["", "conversations", "lag p50 ms", "p99", "max", "lost or reordered", "µs a chunk"],
            *["CPU %", "queued %", "RSS MB", "MB a minute", "descriptors"],
        ],
        note=(
            "Lag is from the model's write to the client's read. Queued is the time in which the "
            "daemon could have run and others had its core. RSS and descriptors are the most "
            "there were; MB a minute is how RSS grows from the time all conversations are there."
        ),
    )


def add_crowd_row(table: BenchTable, work: CrowdLoad, outcome: CrowdOutcome) -> None:
    monitor = outcome.monitor
    size, descriptors = monitor.find_peaks()
    chunks = work.conversations * work.chunks
    seconds = monitor.samples[-1][0] - monitor.samples[0][0]
    table.add_row(
        monitor.daemon.name,
        str(work),
        *format_lags(outcome.lags),
        str(sum(outcome.faults.values())),
        f"{monitor.cpu['daemon'] * seconds / chunks * 1e6:.0f}",
        f"{monitor.cpu['daemon'] * 100:.0f}",
        f"{monitor.queued_share * 100:.0f}",
        f"{size:.0f}",
        f"{monitor.memory_slope():+.1f}",
        f"{descriptors:,}",
    )


def format_lags(lags: list[float]) -> list[str]:
    if not lags:
        return ["", "", ""]
    return [
        f"{compute_percentile(lags, 0.5):.2f}",
        f"{compute_percentile(lags, 0.99):.1f}",
        f"{max(lags):.0f}",
    ]


def build_background_table(outcomes: list[tuple[CrowdLoad, CrowdOutcome]]) -> BenchTable:
    table = BenchTable(
        "Load: what goes on beside it, ms", ["", "beside", "times", "p50", "p99", "max"]
    )
    for work, outcome in outcomes:
        for name, times in outcome.background.latencies.items():
            table.add_row(
                f"{name}, {outcome.monitor.daemon.name}",
                str(work),
                f"{len(times):,}",
                f"{compute_percentile(times, 0.5):.1f}",
                f"{compute_percentile(times, 0.99):.1f}",
                f"{max(times):.0f}",
            )
    return table


def measure_crowds_in_turn(subject: BenchDaemon, model: int) -> BenchTable:
    """Measure memory over time: it may grow with a growing answer, but not from crowd to crowd."""
    table = BenchTable(
        f"Load: RSS in MB, {CROWD_COUNT} crowds one after another, {subject.name}",
        ["crowd", "least", "most", "lost or reordered"],
        note=(
            f"Each is 1,000 conversations at 5 chunks a second for {CROWD_SECONDS} seconds, "
            "all new."
        ),
    )
    for number in range(CROWD_COUNT):
        outcome = uvloop.run(run_load(CrowdLoad(1000, 5, CROWD_SECONDS), subject, model))
        sizes = [size for _, size, _ in outcome.monitor.samples[CROWD_SECONDS // 3 :]]
        faults = str(sum(outcome.faults.values()))
        table.add_row(str(number + 1), f"{min(sizes):.0f}", f"{max(sizes):.0f}", faults)
        gc.collect()
    return table


def measure_steps(subject: BenchDaemon, model: int) -> BenchTable:
    """Run more and more of the same work until something fails."""
    table = BenchTable(
        "Load: until it breaks",
        [
            *["", "chunks/s", "lag p50 ms", "p99", "max", "failed turns", "daemon CPU %"],
            *["queued %", "model CPU %", "clients CPU %", "RSS MB", "descriptors", "why"],
        ],
        note=(
            f"Broken is a turn that fails, or a p99 above {MAX_LAG_MS:.0f} ms. "
            f"{STEP_SECONDS} seconds each."
        ),
    )
    for rate, sizes in ((5, range(1000, 8001, 1000)), (50, range(150, 1201, 150))):
        for conversations in sizes:
            work = CrowdLoad(conversations, rate, STEP_SECONDS)
            outcome = uvloop.run(run_load(work, subject, model))
            monitor = outcome.monitor
            size, descriptors = monitor.find_peaks()
            table.add_row(
                str(work),
                f"{conversations * rate:,}",
                *format_lags(outcome.lags),
                str(sum(outcome.faults.values())),
                f"{monitor.cpu['daemon'] * 100:.0f}",
                f"{monitor.queued_share * 100:.0f}",
                *(f"{monitor.cpu[name] * 100:.0f}" for name in ("model", "clients")),
                f"{size:.0f}",
                f"{descriptors:,}",
                next((fault for fault, _ in outcome.faults.most_common(1)), ""),
            )
            print(table.rows[-1], flush=True)
            if outcome.faults or compute_percentile(outcome.lags, 0.99) > MAX_LAG_MS:
                break
    return table


# ── Profiles ───────────────────────────────────────────────────────────────────────────────────


def profile_daemon(subject: BenchDaemon, work: CrowdLoad, model: int, seconds: int) -> BenchTable:
    """Profile the working daemon from outside, with py-spy."""
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if spy is None:
        raise SystemExit("py-spy is not here; make setup installs it")
    raw = subject.home / "profile"
    # --gil counts only samples that hold the interpreter: by the clock, time when other processes
    # had the core would count too. Each sample stops the daemon for a moment, so the rate is low.
    options = ["--gil", "-p", str(subject.pid), "-d", str(seconds), "-r", "100"]
    command = [spy, "record", *options, "-f", "raw", "-o", str(raw)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        outcome = uvloop.run(run_load(work, subject, model))
        process.wait()
    assert not outcome.faults, outcome.faults
    own, within = read_profile(raw.read_text())
    total = sum(own.values())
    table = BenchTable(
        f"Load: where the time goes with {work}, {subject.name}",
        ["function", "itself %", "with what it calls %"],
        note="Shares of the samples in which the event loop's thread held the interpreter.",
    )
    for name, count in within.most_common(60):
        table.add_row(name, f"{own[name] / total * 100:.1f}", f"{count / total * 100:.1f}")
    return table


def read_profile(raw: str) -> tuple[Counter[str], Counter[str]]:
    """Count samples by function: at the top of the stack, and anywhere in the stack."""
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if not stack.startswith("<module> (crabtalkd"):  # other threads wait for disks
            continue
        frames = [frame.rpartition(":")[0] + ")" for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        for frame in set(frames):
            within[frame] += int(count)
    return own, within


# ── Running ────────────────────────────────────────────────────────────────────────────────────


def run_benchmark(arguments: list[str]) -> list[BenchTable]:
    parser = argparse.ArgumentParser(prog="python -m bench load")
    parser.add_argument("--seconds", type=int, default=DEFAULT_SECONDS)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--no-crowds", action="store_true")
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tables: list[BenchTable] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with pin_to_core(-1), limit_descriptors(hard):
            url, model = stack.enter_context(model_process("--no-record"))
        subjects = [stack.enter_context(run_daemon("this", scratch / "this", url))]
        if options.against:
            other = run_daemon("before", scratch / "before", url, options.against)
            subjects.insert(0, stack.enter_context(other))
        stack.enter_context(pin_to_core(-1))
        stack.enter_context(limit_descriptors(hard))
        gc.disable()  # pauses of the clients would count as the daemon's
        crowds = create_crowd_table()
        outcomes = []
        for work in (CrowdLoad(1000, 5, options.seconds), CrowdLoad(150, 50, options.seconds)):
            for subject in subjects * (not options.no_crowds):
                outcome = uvloop.run(run_load(work, subject, model))
                add_crowd_row(crowds, work, outcome)
                print(crowds.rows[-1], dict(outcome.faults), flush=True)
                outcomes.append((work, outcome))
                gc.collect()
        if outcomes:
            tables += [
                crowds,
                build_background_table(outcomes),
                measure_crowds_in_turn(subjects[-1], model),
            ]
        if options.profile:
            work = CrowdLoad(250, 50, 30)
            tables += [profile_daemon(subject, work, model, 28) for subject in subjects]
        if options.steps:
            tables.append(measure_steps(subjects[-1], model))
    return tables


@contextmanager
def limit_descriptors(count: int) -> Iterator[None]:
    """Set the limit of open files for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
