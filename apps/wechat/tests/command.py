"""The `crabtalk-wechat` command as a process of its own."""

from tests.component.gateway.command import Command

COMMAND = Command("crabtalk-wechat", "crabtalk_wechat.cli:main", "crabtalk_wechat.opening")
