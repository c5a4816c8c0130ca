"""Runs `python -c CODE` in a forked process that has imported the modules of components.

process = start_python(code, home, stderr=PIPE)
"""

import os
import sys
from pathlib import Path
from types import ModuleType

from tests.forked_programs import ForkedProcess, ForkedProgram

ROOT = Path(__file__).parents[2]
PYTHON_LAUNCHER = ForkedProgram(
    *(Path(__file__), "tests.service.python_process:main"),
    *("crabtalk.service.mcp_http", "mcp.server", "uvicorn.lifespan.on"),
    *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
)


def start_python(
    code: str, home: Path, *, stdout: int | None = None, stderr: int | None = None
) -> ForkedProcess:
    environment = {**os.environ, "CRABTALK_HOME": str(home), "PYTHONPATH": str(ROOT)}
    return PYTHON_LAUNCHER.start(code, stdout=stdout, stderr=stderr, env=environment)


def main() -> None:
    code = sys.argv.pop()
    sys.argv[:] = ["-c"]
    module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(module))  # noqa: S102
