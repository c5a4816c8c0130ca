"""`python -m crabtalk_search` is `crabtalk-search`."""

from .cli import main

main(prog_name="crabtalk-search")
