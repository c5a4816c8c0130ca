"""docs/relay.md is up to date: its routes and limits are those of the code."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from crabtalk_web.relay import RelayConfig, RelayLimits, RelayServer
from crabtalk_web.relay.routing import AuthenticatedRoute
from crabtalk_web.relay.server import ROUTE_GROUPS

DOCUMENT = (Path(__file__).parents[4] / "docs" / "relay.md").read_text("utf-8")


@pytest.mark.req("relay.docs")
def test_every_limit_is_documented_with_its_value() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", DOCUMENT, re.MULTILINE))
    limits = RelayLimits()
    assert {name: float(value) for name, value in documented.items()} == {
        field.name: float(getattr(limits, field.name)) for field in fields(RelayLimits)
    }


@pytest.mark.req("relay.docs")
async def test_every_route_is_documented_with_its_access(tmp_path: Path) -> None:
    documented = {
        (method, path, not star)
        for methods, path, star in re.findall(
            r"^\| ([A-Z, ]+) \| `([^`]+)`( \*)? \|", DOCUMENT, re.MULTILINE
        )
        for method in methods.split(", ")
    }
    async with RelayServer(RelayConfig(tmp_path, port=0)) as relay:
        routes = {
            (route.method, route.path, isinstance(route, AuthenticatedRoute))
            for route_group in ROUTE_GROUPS
            for route in route_group(relay.context).routes()
        }
    assert documented == routes
