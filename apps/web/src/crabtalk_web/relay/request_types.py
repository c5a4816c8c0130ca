"""The shapes of client requests. Ciphertext is bytes here and base64 on the wire. A value that is
not base64 was not sealed, and is refused before it is stored."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

Id = Annotated[str, Meta(min_length=1, max_length=200)]
Tag = Annotated[str, Meta(min_length=1, max_length=1000)]
Key = Annotated[str, Meta(min_length=1, max_length=1000)]
Sealed = Annotated[bytes, Meta(min_length=1)]
Version = Annotated[int, Meta(ge=0, le=2**53)]


class ClientRequest(Struct, rename="camel"):
    pass


class LoginRequest(ClientRequest):
    public_key: bytes
    challenge: bytes
    signature: bytes
    # Our extension: admits a new account if registration is by invite.
    invite: Annotated[str, Meta(max_length=100)] | None = None


class PairingRequest(ClientRequest):
    public_key: bytes
    supports_v2: bool | None = msgspec.field(default=None, name="supportsV2")
    # Our extension: the token is returned in a box for this public key.
    seals_token: bool | None = None


class PairingResponse(ClientRequest):
    public_key: bytes
    response: Sealed


class NewSession(ClientRequest):
    tag: Tag
    metadata: Sealed
    agent_state: bytes | None = None
    data_encryption_key: bytes | None = None


class NewMessage(ClientRequest):
    content: Sealed
    local_id: Id


class NewMessages(ClientRequest):
    messages: Annotated[list[NewMessage], Meta(min_length=1)]


class NewMachine(ClientRequest):
    id: Id
    metadata: Sealed
    daemon_state: bytes | None = None
    data_encryption_key: bytes | None = None


class UploadRequest(ClientRequest):
    size: Annotated[int, Meta(ge=1)]
    # Not stored and not logged, because it is private.
    filename: Any = None


class DownloadRequest(ClientRequest):
    ref: str


class PushEvent(ClientRequest):
    kind: Annotated[str, Meta(pattern="^(done|permission|question)$")]
    title: Annotated[str, Meta(min_length=1, max_length=200)]
    body: Annotated[str, Meta(min_length=1, max_length=500)]
    data: Any = None


class PushToken(ClientRequest):
    token: Annotated[str, Meta(min_length=1, max_length=500)]


class SettingsChange(ClientRequest):
    settings: bytes | None
    expected_version: Version


class Mutation(ClientRequest):
    key: Key
    value: bytes | None
    version: Annotated[int, Meta(ge=-1, le=2**53)]


class Mutations(ClientRequest):
    mutations: Annotated[list[Mutation], Meta(min_length=1)]


class KeyList(ClientRequest):
    keys: Annotated[list[Key], Meta(min_length=1)]


class NewArtifact(ClientRequest):
    id: Id
    header: Sealed
    body: Sealed
    data_encryption_key: Sealed


class ArtifactChange(ClientRequest):
    header: Sealed | UnsetType = UNSET
    expected_header_version: Version | UnsetType = UNSET
    body: Sealed | UnsetType = UNSET
    expected_body_version: Version | UnsetType = UNSET


class NewAccessKey(ClientRequest):
    data: Sealed


class AccessKeyChange(ClientRequest):
    data: Sealed
    expected_version: Version


class IgnoredBody(ClientRequest):
    """The content does not matter."""


# ── Socket events ───────────────────────────────────────────────────────────────────────────────


class Handshake(ClientRequest):
    token: Annotated[str, Meta(min_length=1, max_length=1000)]
    client_type: str = "user-scoped"
    session_id: Id | None = None
    machine_id: Id | None = None
    app_state: str | None = None


class SocketMessage(ClientRequest):
    sid: Id
    message: Sealed
    local_id: Id | None = None


class MetadataChange(ClientRequest):
    sid: Id
    metadata: Sealed
    expected_version: Version


class StateChange(ClientRequest):
    sid: Id
    agent_state: Sealed | None
    expected_version: Version


class MachineMetadataChange(ClientRequest):
    machine_id: Id
    metadata: Sealed
    expected_version: Version


class MachineStateChange(ClientRequest):
    machine_id: Id
    daemon_state: Sealed | None
    expected_version: Version


class SessionAlive(ClientRequest):
    sid: Id
    time: float
    thinking: bool | None = None


class SessionEnd(ClientRequest):
    sid: Id


class MachineAlive(ClientRequest):
    machine_id: Id
    time: float


class MethodName(ClientRequest):
    method: Annotated[str, Meta(min_length=1, max_length=500)]


class RpcCall(ClientRequest):
    method: Annotated[str, Meta(min_length=1, max_length=500)]
    params: str


class AppState(ClientRequest):
    state: str


class UsageReport(ClientRequest):
    key: Annotated[str, Meta(max_length=200)]
    tokens: dict[str, float]
    cost: dict[str, float]
    session_id: Id | None = None


class ArtifactId(ClientRequest):
    artifact_id: Id


class VersionedData(ClientRequest):
    data: Sealed
    expected_version: Version


class SocketArtifactChange(ClientRequest):
    artifact_id: Id
    header: VersionedData | None = None
    body: VersionedData | None = None


class AccessKeyQuery(ClientRequest):
    session_id: Id
    machine_id: Id
