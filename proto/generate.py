"""Generates the protocol code from crabtalk.proto; with --check only says whether it is stale.

The generator has an environment of its own (see the `proto` group in pyproject.toml), created on
first use from pinned requirements.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS_FILE = ROOT / "requirements" / "proto.txt"
ENVIRONMENT = ROOT / ".venv" / "proto-tools"
TARGET = ROOT / "src" / "crabtalk" / "protocol"
GENERATED_FILES = ("crabtalk_pb2.py", "crabtalk_pb2.pyi")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when stale")
    check = parser.parse_args().check
    python = install_generator()
    with tempfile.TemporaryDirectory() as scratch:
        generate_code(python, Path(scratch))
        fresh = {name: (Path(scratch) / name).read_bytes() for name in GENERATED_FILES}
    stale = [name for name in GENERATED_FILES if read_committed(name) != fresh[name]]
    if check:
        for name in stale:
            print(f"{TARGET / name} is stale: run make proto", file=sys.stderr)  # noqa: T201
        return 1 if stale else 0
    for name in stale:
        (TARGET / name).write_bytes(fresh[name])
    return 0


def install_generator() -> Path:
    """Return the python that has the generator, installed once per set of pins."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / ".pins"
    pins = PINS_FILE.read_text()
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    with ENVIRONMENT.with_name("proto-tools.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel tests may both install it
        if not stamp.exists() or stamp.read_text() != pins:
            uv = [sys.executable, "-m", "uv", "--quiet"]
            run_command([*uv, "venv", "--clear", "--python", sys.executable, ENVIRONMENT])
            run_command(
                [*uv, "pip", "install", "--python", python, "--require-hashes", "-r", PINS_FILE]
            )
            stamp.write_text(pins)
    return python


def generate_code(python: Path, out: Path) -> None:
    run_command(
        [
            python,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={ROOT / 'proto'}",
            f"--python_out={out}",
            f"--mypy_out=quiet:{out}",
            "crabtalk.proto",
        ],
        # protoc looks for the stub generator beside the python that runs it.
        path=python.parent,
    )


def read_committed(name: str) -> bytes | None:
    path = TARGET / name
    return path.read_bytes() if path.exists() else None


def run_command(command: list[str | Path], path: Path | None = None) -> None:
    environment = dict(os.environ)
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    sys.exit(main())
