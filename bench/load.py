"""Load: a whole daemon under the work of a thousand people, until it breaks.

    python -m bench load [--seconds N] [--against DIR] [--profile] [--steps] [--no-crowds]

`--against` measures a second daemon from the sources in DIR as well, turn and turn about with this
one. `--profile` adds where the time goes, as py-spy sees it. `--steps` adds more and more work
until something gives. Who the people are and what is heard of them is in `crowd`.
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

from .crowd import Daemon, Outcome, Work, carry_out, daemon
from .peers import on_core, percentile
from .report import Table

MINUTE = 60
# Crowds that come one after the other, each for so many seconds.
CROWDS, LASTING = 8, 10
# A step of those that are taken until it breaks.
STEP = 8
# Behind by more than this, a daemon no longer keeps up.
BROKEN = 1000.0

# ── Tables ─────────────────────────────────────────────────────────────────────────────────────


def crowd_table() -> Table:
    return Table(
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


def add_crowd(table: Table, work: Work, outcome: Outcome) -> None:
    watch = outcome.watch
    size, descriptors = watch.most()
    chunks = work.conversations * work.chunks
    lasted = watch.samples[-1][0] - watch.samples[0][0]
    table.row(
        watch.daemon.name,
        str(work),
        *lag_columns(outcome.lags),
        str(sum(outcome.wrong.values())),
        f"{watch.cpu['daemon'] * lasted / chunks * 1e6:.0f}",
        f"{watch.cpu['daemon'] * 100:.0f}",
        f"{watch.queued * 100:.0f}",
        f"{size:.0f}",
        f"{watch.slope():+.1f}",
        f"{descriptors:,}",
    )


def lag_columns(lags: list[float]) -> list[str]:
    if not lags:
        return ["", "", ""]
    return [
        f"{percentile(lags, 0.5):.2f}",
        f"{percentile(lags, 0.99):.1f}",
        f"{max(lags):.0f}",
    ]


def beside_table(outcomes: list[tuple[Work, Outcome]]) -> Table:
    table = Table("Load: what goes on beside it, ms", ["", "beside", "times", "p50", "p99", "max"])
    for work, outcome in outcomes:
        for name, took in outcome.beside.took.items():
            table.row(
                f"{name}, {outcome.watch.daemon.name}",
                str(work),
                f"{len(took):,}",
                f"{percentile(took, 0.5):.1f}",
                f"{percentile(took, 0.99):.1f}",
                f"{max(took):.0f}",
            )
    return table


def one_after_another(subject: Daemon, model: int) -> Table:
    """Memory over time: of an answer that grows it takes more by the second, of crowd after crowd
    it must not."""
    table = Table(
        f"Load: RSS in MB, {CROWDS} crowds one after another, {subject.name}",
        ["crowd", "least", "most", "lost or reordered"],
        note=f"Each is 1,000 conversations at 5 chunks a second for {LASTING} seconds, all new.",
    )
    for number in range(CROWDS):
        outcome = uvloop.run(carry_out(Work(1000, 5, LASTING), subject, model))
        sizes = [size for _, size, _ in outcome.watch.samples[LASTING // 3 :]]
        wrong = str(sum(outcome.wrong.values()))
        table.row(str(number + 1), f"{min(sizes):.0f}", f"{max(sizes):.0f}", wrong)
        gc.collect()
    return table


def steps(subject: Daemon, model: int) -> Table:
    """More and more of the same work, until something gives."""
    table = Table(
        "Load: until it breaks",
        [
            *["", "chunks/s", "lag p50 ms", "p99", "max", "failed turns", "daemon CPU %"],
            *["queued %", "model CPU %", "clients CPU %", "RSS MB", "descriptors", "why"],
        ],
        note=f"Broken is a turn that fails, or a p99 above {BROKEN:.0f} ms. {STEP} seconds each.",
    )
    for rate, sizes in ((5, range(1000, 8001, 1000)), (50, range(150, 1201, 150))):
        for conversations in sizes:
            work = Work(conversations, rate, STEP)
            outcome = uvloop.run(carry_out(work, subject, model))
            watch = outcome.watch
            size, descriptors = watch.most()
            table.row(
                str(work),
                f"{conversations * rate:,}",
                *lag_columns(outcome.lags),
                str(sum(outcome.wrong.values())),
                f"{watch.cpu['daemon'] * 100:.0f}",
                f"{watch.queued * 100:.0f}",
                *(f"{watch.cpu[name] * 100:.0f}" for name in ("model", "clients")),
                f"{size:.0f}",
                f"{descriptors:,}",
                next((fault for fault, _ in outcome.wrong.most_common(1)), ""),
            )
            print(table.rows[-1], flush=True)
            if outcome.wrong or percentile(outcome.lags, 0.99) > BROKEN:
                break
    return table


# ── Profiles ───────────────────────────────────────────────────────────────────────────────────


def profile(subject: Daemon, work: Work, model: int, seconds: int) -> Table:
    """Where the daemon's time goes while it works, as py-spy sees it from outside."""
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if spy is None:
        raise SystemExit("py-spy is not here; make setup installs it")
    raw = subject.home / "profile"
    # Seen while it holds the interpreter: by the clock, time others took its core for is its own.
    # Each look stops it for a moment, so that looking often would change what is seen.
    options = ["--gil", "-p", str(subject.pid), "-d", str(seconds), "-r", "100"]
    command = [spy, "record", *options, "-f", "raw", "-o", str(raw)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        outcome = uvloop.run(carry_out(work, subject, model))
        process.wait()
    assert not outcome.wrong, outcome.wrong
    own, within = read_profile(raw.read_text())
    total = sum(own.values())
    table = Table(
        f"Load: where the time goes with {work}, {subject.name}",
        ["function", "itself %", "with what it calls %"],
        note="Shares of the samples in which the event loop's thread held the interpreter.",
    )
    for name, count in within.most_common(60):
        table.row(name, f"{own[name] / total * 100:.1f}", f"{count / total * 100:.1f}")
    return table


def read_profile(raw: str) -> tuple[Counter[str], Counter[str]]:
    """Samples by function: those it was seen at work in itself, and those it was part of."""
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


# ── All of it ──────────────────────────────────────────────────────────────────────────────────


def run(arguments: list[str]) -> list[Table]:
    parser = argparse.ArgumentParser(prog="python -m bench load")
    parser.add_argument("--seconds", type=int, default=MINUTE)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--no-crowds", action="store_true")
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tables: list[Table] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with on_core(-1), descriptors(hard):
            url, model = stack.enter_context(model_process("--no-record"))
        subjects = [stack.enter_context(daemon("this", scratch / "this", url))]
        if options.against:
            other = daemon("before", scratch / "before", url, options.against)
            subjects.insert(0, stack.enter_context(other))
        stack.enter_context(on_core(-1))
        stack.enter_context(descriptors(hard))
        gc.disable()  # the clients' own pauses are not the daemon's
        crowds = crowd_table()
        outcomes = []
        for work in (Work(1000, 5, options.seconds), Work(150, 50, options.seconds)):
            for subject in subjects * (not options.no_crowds):
                outcome = uvloop.run(carry_out(work, subject, model))
                add_crowd(crowds, work, outcome)
                print(crowds.rows[-1], dict(outcome.wrong), flush=True)
                outcomes.append((work, outcome))
                gc.collect()
        if outcomes:
            tables += [crowds, beside_table(outcomes), one_after_another(subjects[-1], model)]
        if options.profile:
            work = Work(250, 50, 30)
            tables += [profile(subject, work, model, 28) for subject in subjects]
        if options.steps:
            tables.append(steps(subjects[-1], model))
    return tables


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Lets this process, and those it starts, have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
