"""The gateway library: give Gateway a ChatService, and people talk to agents through it.

async with MyService(settings) as service:
    await Gateway(home, service, settings).run()
"""

from typing import TYPE_CHECKING

from crabtalk.lazy_imports import load_lazily

if TYPE_CHECKING:
    from .backoff import Backoff
    from .chat_service import (
        MAX_PAYLOAD_BYTES,
        Attachment,
        Button,
        Chat,
        ChatBlockedError,
        ChatService,
        ChatServiceError,
        DeliveryUnknownError,
        Markdown,
        MessageTooLongError,
        Person,
        RejectedError,
        RetryLaterError,
        ServiceLimits,
        Update,
    )
    from .errors import GatewayError
    from .gateway import Gateway
    from .gateway_context import GatewayBounds
    from .pairing import PairingCode
    from .settings import GatewaySettings, allow_user, load_settings, write_settings

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "Attachment",
    "Backoff",
    "Button",
    "Chat",
    "ChatBlockedError",
    "ChatService",
    "ChatServiceError",
    "DeliveryUnknownError",
    "Gateway",
    "GatewayBounds",
    "GatewayError",
    "GatewaySettings",
    "Markdown",
    "MessageTooLongError",
    "PairingCode",
    "Person",
    "RejectedError",
    "RetryLaterError",
    "ServiceLimits",
    "Update",
    "allow_user",
    "load_settings",
    "write_settings",
]

# Names are imported on first use: a command line needs none of them to print its help.
__getattr__ = load_lazily(
    __name__,
    {
        "backoff": ("Backoff",),
        "gateway_context": ("GatewayBounds",),
        "errors": ("GatewayError",),
        "gateway": ("Gateway",),
        "pairing": ("PairingCode",),
        "settings": ("GatewaySettings", "allow_user", "load_settings", "write_settings"),
        "chat_service": (
            "MAX_PAYLOAD_BYTES",
            "Attachment",
            "DeliveryUnknownError",
            "ChatBlockedError",
            "Button",
            "Chat",
            "ServiceLimits",
            "Person",
            "RejectedError",
            "Markdown",
            "ChatService",
            "ChatServiceError",
            "MessageTooLongError",
            "RetryLaterError",
            "Update",
        ),
    },
)
