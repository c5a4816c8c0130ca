"""The gateway in the manual's page: its code block as a module and as a program."""

import re
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[2] / "docs" / "gateways.md"


def read_source() -> str:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return str(source)


def load_module() -> ModuleType:
    module = ModuleType("pigeon")
    module.__file__ = str(PAGE)
    exec(compile(read_source(), str(PAGE), "exec"), module.__dict__)  # noqa: S102 - our own page
    return module
