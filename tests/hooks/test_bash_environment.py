"""The environment of bash commands: inherited variables, and variables a call may set."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crabtalk.hooks.bash import BashSettings
from crabtalk.policy.environment_variables import can_change_programs
from crabtalk.storage import AgentError
from tests.hooks.test_bash import build_agent, build_runtime, needs_bwrap, read_result, run_bash
from tests.runtime.runtime_world import RuntimeWorld

# A library that reports when it is loaded into a program.
LIBRARY = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    FILE *file = fopen(RECORD, "a");
    if (length < 0 || file == NULL) return;
    program[length] = 0;
    fprintf(file, "%s\\n", program);
    fclose(file);
}
"""
# Replaces bwrap: records its environment, sets the requested variables, and runs the command.
STAND_IN = """#!/bin/bash
/usr/bin/env > {record}
while [ "$1" != -- ]; do
    if [ "$1" = --setenv ]; then export "$2=$3"; fi
    shift
done
shift
exec "$@"
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[RuntimeWorld]:
    world = RuntimeWorld(tmp_path)
    yield world
    await world.close()


async def call_bash(
    world: RuntimeWorld, env: dict[str, str], command: str = "env", **settings: Any
) -> str:
    arguments = {"command": command, "env": env}
    return (
        await read_result(build_runtime(world, arguments, **settings).start("crab", "Go!"))
    ).output


@pytest.mark.req("trust.environment")
@pytest.mark.parametrize("sandbox", ["off", pytest.param("bwrap", marks=needs_bwrap)])
async def test_a_command_sees_only_variables_of_the_daemon_that_the_agents_file_names(
    world: RuntimeWorld, monkeypatch: pytest.MonkeyPatch, sandbox: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    monkeypatch.setenv("GITHUB_TOKEN", "gh-0123456789")
    seen = (await run_bash(world, "env", sandbox=sandbox))["stdout"]
    assert "PATH=" in seen
    assert "0123456789" not in seen
    seen = (await run_bash(world, "env", sandbox=sandbox, env=["GITHUB_TOKEN", "ABSENT"]))["stdout"]
    assert "GITHUB_TOKEN=gh-0123456789\n" in seen
    assert "sk-ant" not in seen
    assert "ABSENT" not in seen


@pytest.mark.req("bash.env_refused")
@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "GCONV_PATH"),
        *("BASH_ENV", "ENV", "BASH_FUNC_ls%%", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND"),
        *("IFS", "PATH", "HOME", "PYTHONPATH", "PYTHONSTARTUP", "PERL5LIB", "PERL5OPT"),
        *("NODE_OPTIONS", "RUBYOPT", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_CONFIG_COUNT"),
        *("GIT_EXEC_PATH", "PAGER", "EDITOR", "LESSOPEN", "JAVA_TOOL_OPTIONS", "ld_preload"),
        *("MAKEFLAGS", "RUSTC_WRAPPER", "npm_config_script_shell", "", "A=B", "A\nB"),
    ],
)
async def test_a_call_may_not_set_a_variable_that_changes_what_runs(
    world: RuntimeWorld, name: str
) -> None:
    output = await call_bash(world, {"FINE": "1", name: "x"}, "touch ran")
    assert output.startswith("permission denied: env may not set ")
    assert repr(name) in output
    assert not (world.cwd / "ran").exists()


@pytest.mark.req("bash.process")
@pytest.mark.parametrize(
    "name", ["X", "NODE_ENV", "GIT_AUTHOR_NAME", "CI", "RUST_BACKTRACE", "debug", "_x1"]
)
def test_other_variables_may_be_set(name: str) -> None:
    assert not can_change_programs(name)


@pytest.mark.req("bash.sandbox_env")
@needs_bwrap
async def test_in_the_sandbox_a_command_has_the_variables_of_its_call(world: RuntimeWorld) -> None:
    output = await call_bash(world, {"X": "a b", "Y": "--bind"}, 'echo "$X $Y"', sandbox="bwrap")
    assert json.loads(output)["stdout"] == "a b --bind\n"


@pytest.mark.req("bash.sandbox_env")
async def test_bwrap_itself_does_not_get_the_variables_of_a_call(
    world: RuntimeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    record = tmp_path / "outside"
    (programs / "bwrap").write_text(STAND_IN.format(record=record))
    (programs / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    output = await call_bash(world, {"MARK": "from the model"}, "echo $MARK", sandbox="bwrap")
    assert json.loads(output)["stdout"] == "from the model\n"
    outside = record.read_text()
    assert "PATH=" in outside
    assert "from the model" not in outside
    assert "sk-0123456789" not in outside


@pytest.mark.req("bash.env_refused")
@pytest.mark.parametrize("sandbox", ["off", pytest.param("bwrap", marks=needs_bwrap)])
async def test_a_library_built_by_a_command_is_not_loaded_outside_of_it(
    world: RuntimeWorld, tmp_path_factory: pytest.TempPathFactory, sandbox: str
) -> None:
    if (compiler := shutil.which("gcc") or shutil.which("cc")) is None:
        pytest.skip("no C compiler is installed, so no library can be built")
    record = tmp_path_factory.mktemp("outside") / "loaded"
    (world.cwd / "evil.c").write_text(LIBRARY)
    build = f"{compiler} -shared -fPIC -DRECORD='\"{record}\"' -o evil.so evil.c"
    built = await run_bash(world, build, sandbox=sandbox)
    assert built["exit_code"] == 0, built["stderr"]
    library = world.cwd / "evil.so"
    # The library works, so the test below can fail.
    command, env = ["/bin/true"], {"LD_PRELOAD": str(library)}
    await asyncio.to_thread(subprocess.run, command, env=env, check=True)
    assert record.read_text().strip()
    record.unlink()
    output = await call_bash(world, {"LD_PRELOAD": str(library)}, "true", sandbox=sandbox)
    assert output.startswith("permission denied: env may not set 'LD_PRELOAD'")
    assert not record.exists()


@pytest.mark.req("bash.settings")
@pytest.mark.parametrize("name", ["TOKEN=x", "", "a b", "${X}"])
def test_an_agents_file_names_variables_and_gives_no_values(name: str) -> None:
    with pytest.raises(AgentError, match="in env is not the name of a variable"):
        BashSettings.from_agent(build_agent(env=[name]))
