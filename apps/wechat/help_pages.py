"""Writes each command's help into the page that shows it; with --check, only reports stale
pages."""

import sys

from apps.help_page import HelpPage
from crabtalk_wechat.cli import main

PAGE = HelpPage(main, "apps/wechat/README.md", "apps.wechat.help_pages")

if __name__ == "__main__":
    sys.exit(PAGE.update_page())
