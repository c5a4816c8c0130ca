"""The drawing modules contain nothing that could create elements from markup."""

import pytest

from .conftest import PAGE


@pytest.mark.req("rows.no_markup")
def test_no_module_creates_elements_from_markup() -> None:
    words = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "setHTML"]
    words += ["new Function", "createContextualFragment", "parseFromString", "srcdoc="]
    for folder in ("draw", "rows"):
        for path in sorted((PAGE / folder).glob("*.js")):
            code = path.read_text("utf-8")
            assert [word for word in words if word in code] == [], path.name
