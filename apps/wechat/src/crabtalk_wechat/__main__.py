"""`python -m crabtalk_wechat` is `crabtalk-wechat`."""

from .cli import main

main(prog_name="crabtalk-wechat")
