"""Writes links to all modules and style sheets into the page; with --check, only reports if they
are stale.

A browser that knows all modules from the start fetches them at once instead of one after another,
and the service worker caches the files linked here.
"""

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "src" / "crabtalk_web" / "page"
# In the order in which they override each other; a new sheet goes last.
SHEETS = ("tokens", "base", "shell", "list", "conversation", "composer", "forms", "rows", "code")
# Loaded by name, and not imported by the page.
NOT_LINKED = {"app.js", "theme.js", "worker.js", "crypto/blob_worker.js"}
BLOCK = re.compile(r"(?<=<!-- files -->\n).*?(?=^ *<!-- /files -->)", re.DOTALL | re.MULTILINE)


def build_links() -> str:
    modules = sorted(path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*.js"))
    names = [path.stem for path in sorted((PAGE / "style").glob("*.css"))]
    sheets = sorted(names, key=lambda name: SHEETS.index(name) if name in SHEETS else len(SHEETS))
    return "".join(
        [f'    <link rel="stylesheet" href="/style/{name}.css">\n' for name in sheets]
        + [
            f'    <link rel="modulepreload" href="/{module}">\n'
            for module in modules
            if module not in NOT_LINKED
        ]
    )


def render_index() -> str:
    return BLOCK.sub(lambda _: build_links(), (PAGE / "index.html").read_text("utf-8"))


def main() -> int:
    index = PAGE / "index.html"
    if index.read_text("utf-8") == render_index():
        return 0
    if "--check" in sys.argv:
        sys.exit("index.html is stale: run python -m apps.web.page_files")
    index.write_text(render_index(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
