"""The `crabtalk-telegram` command as a process."""

from tests.gateway.gateway_command import GatewayCommand

TELEGRAM_COMMAND = GatewayCommand(
    "crabtalk-telegram", "crabtalk_telegram.cli:main", "crabtalk_telegram.bot_setup"
)
