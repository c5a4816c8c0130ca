"""Hooks of other distributions, loaded by a real daemon."""

import os
from pathlib import Path

import pytest

from crabtalk.client import connect
from tests.daemon.test_process import spawn_daemon

MODULE = """
from crabtalk.hooks import AgentTool, ToolHook
class Count(AgentTool):
    "Count the stones."
    name = "count_stones"
    async def run(self, call, hook):
        return "7"
class StonesHook(ToolHook):
    tools = (Count,)
def broken():
    raise RuntimeError("no stones today")
"""
POINTS = "[crabtalk.hooks]\nstones = stones:StonesHook\nbad = stones:broken\nodd = stones:int\n"


@pytest.mark.req("hooks.plugins")
async def test_hooks_of_other_distributions_are_loaded_and_failures_are_reported(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "stones-1.0.dist-info").mkdir(parents=True)
    (site / "stones-1.0.dist-info" / "METADATA").write_text("Name: stones\nVersion: 1.0\n")
    (site / "stones-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    (site / "stones.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    async with spawn_daemon(home, "--tcp", "off"), connect(home=home) as client:
        problems = list((await client.get_stats()).problems)
        assert len(problems) == 2
        assert any("bad" in problem and "no stones today" in problem for problem in problems)
        assert any("odd" in problem for problem in problems)
        assert [agent.name for agent in (await client.list_agents()).agents] == ["crab"]
