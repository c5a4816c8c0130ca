"""Node beside a test: runs one of our scripts, which answers each line with a line."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[4]
NPM = Path(os.environ.get("CRABTALK_NPM", ROOT / ".venv" / "npm")) / "node_modules"
EXECUTABLE = shutil.which("node")
needs_node = pytest.mark.skipif(EXECUTABLE is None, reason="node is not installed")


class NodeProcess:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def request(self, verb: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": verb, **given}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer
        return answer["answer"]


@contextmanager
def run_node(script: str) -> Iterator[NodeProcess]:
    assert EXECUTABLE is not None
    env = {**os.environ, "NODE_PATH": str(NPM), "NODE_NO_WARNINGS": "1"}
    pipe = subprocess.PIPE
    command = [EXECUTABLE, str(HERE / script)]
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield NodeProcess(process)
        finally:
            process.kill()
