"""Asks the protocol's own npm package about values; CRABTALK_NPM is its location."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
NPM = Path(os.environ.get("CRABTALK_NPM", ROOT / ".venv" / "npm")).absolute()
SCRIPT = Path(__file__).with_name("happy_wire.mjs")
ENVELOPE, BODY = "sessionEnvelopeSchema", "MessageContentSchema"


def judge_values(schema: str, values: Iterable[Any]) -> list[bool]:
    node = shutil.which("node")
    if node is None or not (NPM / "node_modules" / "@slopus" / "happy-wire").is_dir():
        pytest.skip("needs node, and @slopus/happy-wire where CRABTALK_NPM says")
    lines = "".join(json.dumps({"schema": schema, "value": value}) + "\n" for value in values)
    done = subprocess.run(
        [node, str(SCRIPT), str(NPM)], input=lines, capture_output=True, text=True, check=True
    )
    return [line == "true" for line in done.stdout.split()]
