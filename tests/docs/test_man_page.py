"""The manual page: its content, its roff, and where it is installed."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from apps.help_page import ROOT
from docs.command_help import PAGES
from docs.man_page import MAN_PAGE, escape_roff, render_man_page

PAGE = ROOT / MAN_PAGE


def run_groff() -> str:
    """Render the page as on a wide screen."""
    command = ["groff", "-man", "-Tutf8", "-ww", "-rLL=200n", "-P-cbou", str(PAGE)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return result.stdout


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
@pytest.mark.req("cli.manual")
def test_every_command_option_and_example_can_be_read_in_it() -> None:
    text = " ".join(run_groff().replace("\u2010", "-").split())
    for name in PAGES[0].list_commands():
        assert name in text
    for context in PAGES[0].iterate_contexts():
        for option in context.command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in text, (context.command_path, option.opts)
        for example in re.findall(r"^ +(crabtalk .*)$", context.command.help or "", re.MULTILINE):
            assert " ".join(example.split()) in text


@pytest.mark.req("cli.manual")
def test_text_that_looks_like_a_roff_command_is_escaped() -> None:
    assert escape_roff(".TH") == "\\&.TH"
    assert escape_roff("'quoted'") == "\\&'quoted'"
    assert escape_roff("a\\b --c") == "a\\eb \\-\\-c"
    assert escape_roff("…") == "\\[u2026]"

    @click.command("odd", help=".PP is no paragraph\n\n\b\n.B not bold")
    def odd() -> None: ...

    root, *_ = PAGES[0].iterate_contexts()
    page = render_man_page([root, click.Context(odd, info_name="odd", parent=root)])
    assert "\n\\&.PP is no paragraph\n" in page
    assert "\n\\&.B not bold\n" in page


@pytest.mark.req("cli.manual")
def test_it_is_installed_where_man_looks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("crabtalk.1"))
        assert name.endswith(".data/data/share/man/man1/crabtalk.1")
        assert files.read(name) == PAGE.read_bytes()
