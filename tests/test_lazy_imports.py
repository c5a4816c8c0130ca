"""Packages whose names are loaded when first used: all are there, and cost nobody else."""

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = [
    *("crabtalk", "crabtalk.service", "crabtalk.gateway", "crabtalk.memory"),
    *("crabtalk.policy", "crabtalk.storage", "crabtalk.transport"),
]


def list_modules_after(code: str) -> set[str]:
    """What a process has loaded that ran just this."""
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(found.stdout.split())


@pytest.mark.req("component.command.light")
@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_a_package_promises_is_there(name: str) -> None:
    package = import_module(name)
    for each in package.__all__:
        assert getattr(package, each) is not None
        assert each in vars(package), "it is looked for once"
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


@pytest.mark.parametrize(
    "name", ["default_home", "replace_file", "remove_stale_temporary_files", "RunFiles"]
)
def test_whoever_needs_a_file_of_the_home_loads_no_wire_and_no_loop(name: str) -> None:
    loaded = list_modules_after(f"from crabtalk.transport import {name}")
    assert loaded.isdisjoint({"asyncio", "google.protobuf", "crabtalk.protocol", "ssl"})


def test_a_client_loads_no_listener() -> None:
    loaded = list_modules_after("import crabtalk.client")
    assert "crabtalk.transport.framed_connection" in loaded
    assert "crabtalk.transport.listener" not in loaded
