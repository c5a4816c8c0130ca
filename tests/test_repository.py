"""The repository: pins without download addresses, and generated code that is up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def list_tracked_files() -> list[Path]:
    """Every file that is part of the project: what git tracks, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for line in result.stdout.splitlines() if (path := ROOT / line).is_file()]


@pytest.mark.req("repo.no_addresses")
def test_no_lock_file_that_records_download_addresses_is_tracked() -> None:
    names = {path.name for path in list_tracked_files()}
    assert not names & {"uv.lock", "package-lock.json", "yarn.lock", "pnpm-lock.yaml"}


@pytest.mark.req("repo.no_addresses")
def test_pins_are_versions_and_hashes_only() -> None:
    pins = sorted((ROOT / "requirements").glob("*.txt"))
    assert pins
    line = re.compile(r"[a-z0-9-]+==\S+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
    for path in pins:
        odd = [text for text in path.read_text().splitlines() if not line.fullmatch(text)]
        assert odd == [], path


@pytest.mark.req("repo.proto.fresh")
def test_the_generated_wire_code_is_fresh() -> None:
    command = [sys.executable, "proto/generate.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.req("repo.proto.fresh")
def test_stale_wire_code_is_noticed(tmp_path: Path) -> None:
    """Run the same check in a copy of the project with a changed proto file."""
    subprocess.run([sys.executable, "proto/generate.py", "--check"], cwd=ROOT, check=True)
    for name in ("proto/generate.py", "proto/crabtalk.proto", "requirements/proto.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    target = tmp_path / "src" / "crabtalk" / "protocol"
    target.mkdir(parents=True)
    for name in ("crabtalk_pb2.py", "crabtalk_pb2.pyi"):
        (target / name).write_bytes((ROOT / "src/crabtalk/protocol" / name).read_bytes())
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "proto-tools").symlink_to(ROOT / ".venv" / "proto-tools")
    proto = tmp_path / "proto" / "crabtalk.proto"
    proto.write_text(proto.read_text() + "\nmessage Surprise {}\n")
    command = [sys.executable, str(tmp_path / "proto" / "generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "crabtalk_pb2.py is stale: run make proto" in result.stderr
