"""`python -m crabtalk_telegram` is `crabtalk-telegram`."""

from .cli import main

main(prog_name="crabtalk-telegram")
