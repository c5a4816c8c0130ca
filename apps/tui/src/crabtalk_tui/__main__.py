"""`python -m crabtalk_tui` is `crabtalk`."""

from .cli import main

main(prog_name="crabtalk")
