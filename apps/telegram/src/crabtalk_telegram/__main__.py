"""`python -m crabtalk_cron` is `crabtalk-cron`."""

from .cli import main

main(prog_name="crabtalk-cron")
