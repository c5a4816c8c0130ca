"""`python -m crabtalk.cli` is `crabtalk`."""

from .main import main

main(prog_name="crabtalk")
