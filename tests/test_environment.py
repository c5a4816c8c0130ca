"""Environments of child processes, and hiding the environment of this one."""

import os
import subprocess
import sys

import pytest

from crabtalk.environment import NETWORK_VARIABLES, build_child_environment

FULL = {
    "PATH": "/bin",
    "HOME": "/home/crab",
    "LANG": "C.UTF-8",
    "LC_TIME": "C",
    "TERM": "xterm",
    "TZ": "UTC",
    "OPENAI_API_KEY": "sk-secret",
    "GITHUB_TOKEN": "gh-secret",
    "HTTPS_PROXY": "http://proxy:1",
    "LD_PRELOAD": "x.so",
}


@pytest.mark.req("trust.environment")
def test_a_child_gets_the_basic_variables_and_no_others() -> None:
    basic = {"PATH", "HOME", "LANG", "LC_TIME", "TERM", "TZ"}
    assert build_child_environment(environ=FULL) == {name: FULL[name] for name in basic}


@pytest.mark.req("trust.environment")
def test_named_variables_are_passed_where_they_are_set_and_added_ones_win() -> None:
    environment = build_child_environment(
        ["GITHUB_TOKEN", "ABSENT"], {"TERM": "dumb"}, environ=FULL
    )
    assert environment["GITHUB_TOKEN"] == "gh-secret"
    assert environment["TERM"] == "dumb"
    assert "ABSENT" not in environment
    assert "HTTPS_PROXY" not in environment
    assert (
        build_child_environment(NETWORK_VARIABLES, environ=FULL)["HTTPS_PROXY"] == "http://proxy:1"
    )


@pytest.mark.req("trust.environ_file")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows environments in files")
def test_a_process_that_hides_its_environment_is_no_longer_dumpable() -> None:
    script = (
        "from crabtalk.environment import hide_environment; import _ctypes; "
        "prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), 'prctl'); "
        "print(hide_environment(), _ctypes.call_function(prctl, (3, 0, 0, 0, 0)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    assert output.split() == ["True", "0"]
