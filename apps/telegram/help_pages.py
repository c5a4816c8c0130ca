"""Writes each command's help into the page that shows it; with --check, only reports stale
pages."""

import sys

from apps.help_page import HelpPage
from crabtalk_telegram.cli import main

PAGE = HelpPage(main, "apps/telegram/README.md", "apps.telegram.help_pages")

if __name__ == "__main__":
    sys.exit(PAGE.update_page())
