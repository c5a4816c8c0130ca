"""What a chat gateway needs: give it a Service, and people talk to agents through it.

async with MyService(settings) as service:
    await Gateway(home, service, settings).run()
"""

from typing import TYPE_CHECKING

from crabtalk.late import late

if TYPE_CHECKING:
    from .backoff import Backoff
    from .desk import Bounds
    from .errors import GatewayError
    from .gateway import Gateway
    from .pairing import Pairing
    from .service import (
        PAYLOAD,
        Attachment,
        Away,
        Blocked,
        Button,
        Chat,
        Limits,
        Person,
        Refused,
        Rich,
        Service,
        ServiceError,
        TooLong,
        TryLater,
        Update,
    )
    from .settings import Settings, allow, load_settings, write_settings

__all__ = [
    "PAYLOAD",
    "Attachment",
    "Away",
    "Backoff",
    "Blocked",
    "Bounds",
    "Button",
    "Chat",
    "Gateway",
    "GatewayError",
    "Limits",
    "Pairing",
    "Person",
    "Refused",
    "Rich",
    "Service",
    "ServiceError",
    "Settings",
    "TooLong",
    "TryLater",
    "Update",
    "allow",
    "load_settings",
    "write_settings",
]

# Where each is. Imported on first use: a command line needs none of it to print its help.
__getattr__ = late(
    __name__,
    {
        "backoff": ("Backoff",),
        "desk": ("Bounds",),
        "errors": ("GatewayError",),
        "gateway": ("Gateway",),
        "pairing": ("Pairing",),
        "settings": ("Settings", "allow", "load_settings", "write_settings"),
        "service": (
            "PAYLOAD",
            "Attachment",
            "Away",
            "Blocked",
            "Button",
            "Chat",
            "Limits",
            "Person",
            "Refused",
            "Rich",
            "Service",
            "ServiceError",
            "TooLong",
            "TryLater",
            "Update",
        ),
    },
)
