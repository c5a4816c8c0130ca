"""The `crabtalk-wechat` command as a process."""

from tests.gateway.gateway_command import GatewayCommand

WECHAT_COMMAND = GatewayCommand(
    "crabtalk-wechat", "crabtalk_wechat.cli:main", "crabtalk_wechat.service_setup"
)
