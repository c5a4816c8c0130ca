"""OlderDaemonServer: a daemon without keys, for programs that must still work with one."""

from collections.abc import AsyncGenerator

from crabtalk.daemon.handlers.daemon_server import DaemonServer
from crabtalk.protocol import PROTOCOL_VERSION, Server, wire


class OlderDaemonServer(DaemonServer):
    """Announces no features, and ignores their fields and requests."""

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(protocol_version=PROTOCOL_VERSION, server_version="0.1.0")

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        request.ClearField("key")
        async for event in super().stream(request):
            yield event

    async def send(self, request: wire.SendMsg) -> wire.SendResponse:
        request.ClearField("key")
        return await super().send(request)

    async def steer_session(self, request: wire.SteerSessionMsg) -> None:
        request.ClearField("key")
        await super().steer_session(request)

    async def kill(self, request: wire.KillMsg) -> None:
        request.ClearField("run_id")
        request.ClearField("key")
        await super().kill(request)

    async def list_messages(self, request: wire.ListMessagesMsg) -> wire.MessagePage:
        request.ClearField("with_runs")
        return await super().list_messages(request)

    def attach(self, request: wire.AttachMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        return Server.attach(self, request)

    async def list_records(self, request: wire.ListRecordsMsg) -> wire.RecordPage:
        return await Server.list_records(self, request)
