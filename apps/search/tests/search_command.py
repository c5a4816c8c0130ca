"""The `crabtalk-search` command, run in a forked process that has its modules loaded."""

import sys
from pathlib import Path

from tests.forked_programs import ForkedProgram

PROGRAM = Path(sys.executable).with_name("crabtalk-search")
SEARCH_LAUNCHER = ForkedProgram(
    *(PROGRAM, "crabtalk_search.cli:main"),
    *("crabtalk_search.component", "crabtalk_search.tools", "crabtalk.service.mcp_http"),
    *("mcp.server", "uvicorn.lifespan.on", "uvicorn.protocols.http.auto"),
    *("uvicorn.protocols.websockets.auto", "aiohttp"),
)
