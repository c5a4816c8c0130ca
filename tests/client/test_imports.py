"""Importing the client loads protobuf and the standard library, nothing else."""

import subprocess
import sys

import pytest

LIST_IMPORTS = """
import sys
before = set(sys.modules)
import {module}
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def list_loaded_packages(module: str) -> set[str]:
    """The top-level packages, and crabtalk's subpackages, that importing `module` loads.

    Without `lazy_imports`, which loads nothing else.
    """
    command = [sys.executable, "-c", LIST_IMPORTS.format(module=module)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    subpackages = {".".join(name.split(".")[:2]) for name in names if name.startswith("crabtalk.")}
    packages = {name.split(".")[0] for name in names} - {"crabtalk"}
    subpackages.discard("crabtalk.lazy_imports")
    return subpackages | {p for p in packages if p not in sys.stdlib_module_names}


@pytest.mark.req("client.import.light")
def test_the_client_loads_protobuf_and_the_packages_below_it() -> None:
    assert list_loaded_packages("crabtalk.client") == {
        "crabtalk.client",
        "crabtalk.transport",
        "crabtalk.protocol",
        "google",
    }


@pytest.mark.req("client.import.light")
def test_the_package_itself_loads_nothing() -> None:
    assert list_loaded_packages("crabtalk") == set()


def test_a_name_the_package_does_not_have_is_an_attribute_error() -> None:
    import crabtalk

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = crabtalk.nonsense
    assert crabtalk.connect is not None
