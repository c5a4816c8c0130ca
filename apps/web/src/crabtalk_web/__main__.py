"""`python -m crabtalk_web` is `crabtalk-web`."""

from .cli import main

main(prog_name="crabtalk-web")
