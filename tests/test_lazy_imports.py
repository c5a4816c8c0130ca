"""Packages whose names are loaded on first use: all names exist, and unused ones cost nothing."""

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = [
    *("crabtalk", "crabtalk.service", "crabtalk.gateway", "crabtalk.memory"),
    *("crabtalk.policy", "crabtalk.storage", "crabtalk.transport"),
]


def list_modules_after(code: str) -> set[str]:
    """The modules a process has loaded after running this code."""
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.req("component.command.light")
@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_in_all_can_be_imported(name: str) -> None:
    package = import_module(name)
    for attribute in package.__all__:
        assert getattr(package, attribute) is not None
        assert attribute in vars(package), "it must be looked up only once"
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


@pytest.mark.parametrize(
    "name", ["default_home", "replace_file", "remove_stale_temporary_files", "RunFiles"]
)
def test_using_files_of_the_home_loads_no_protocol_and_no_loop(name: str) -> None:
    loaded = list_modules_after(f"from crabtalk.transport import {name}")
    assert loaded.isdisjoint({"asyncio", "google.protobuf", "crabtalk.protocol", "ssl"})


def test_a_client_loads_no_listener() -> None:
    loaded = list_modules_after("import crabtalk.client")
    assert "crabtalk.transport.framed_connection" in loaded
    assert "crabtalk.transport.listener" not in loaded
