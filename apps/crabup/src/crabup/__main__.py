"""`python -m crabup` is `crabup`."""

from .cli import main

main(prog_name="crabup")
