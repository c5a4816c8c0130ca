"""`python -m crabtalk.daemon` is `crabtalkd`."""

from .cli import main

main(prog_name="crabtalkd")
