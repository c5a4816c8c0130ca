"""Shapes: what clients send. Ciphertext is bytes here and base64 on the wire; what is no base64 was
not sealed, and is refused before it is kept."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

Id = Annotated[str, Meta(min_length=1, max_length=200)]
Tag = Annotated[str, Meta(min_length=1, max_length=1000)]
Key = Annotated[str, Meta(min_length=1, max_length=1000)]
Sealed = Annotated[bytes, Meta(min_length=1)]
Version = Annotated[int, Meta(ge=0, le=2**53)]


class Shape(Struct, rename="camel"):
    pass


class Login(Shape):
    public_key: bytes
    challenge: bytes
    signature: bytes
    # Ours: what lets a new account in where registration is by invite.
    invite: Annotated[str, Meta(max_length=100)] | None = None


class PairingRequest(Shape):
    public_key: bytes
    supports_v2: bool | None = msgspec.field(default=None, name="supportsV2")
    # Ours: the token comes back in a box for this public key.
    seals_token: bool | None = None


class PairingResponse(Shape):
    public_key: bytes
    response: Sealed


class NewSession(Shape):
    tag: Tag
    metadata: Sealed
    agent_state: bytes | None = None
    data_encryption_key: bytes | None = None


class NewMessage(Shape):
    content: Sealed
    local_id: Id


class NewMessages(Shape):
    messages: Annotated[list[NewMessage], Meta(min_length=1)]


class NewMachine(Shape):
    id: Id
    metadata: Sealed
    daemon_state: bytes | None = None
    data_encryption_key: bytes | None = None


class UploadRequest(Shape):
    size: Annotated[int, Meta(ge=1)]
    # It says what the file is called, so it is neither kept nor logged.
    filename: Any = None


class DownloadRequest(Shape):
    ref: str


class PushEvent(Shape):
    kind: Annotated[str, Meta(pattern="^(done|permission|question)$")]
    title: Annotated[str, Meta(min_length=1, max_length=200)]
    body: Annotated[str, Meta(min_length=1, max_length=500)]
    data: Any = None


class PushToken(Shape):
    token: Annotated[str, Meta(min_length=1, max_length=500)]


class Settings(Shape):
    settings: bytes | None
    expected_version: Version


class Mutation(Shape):
    key: Key
    value: bytes | None
    version: Annotated[int, Meta(ge=-1, le=2**53)]


class Mutations(Shape):
    mutations: Annotated[list[Mutation], Meta(min_length=1)]


class Keys(Shape):
    keys: Annotated[list[Key], Meta(min_length=1)]


class NewArtifact(Shape):
    id: Id
    header: Sealed
    body: Sealed
    data_encryption_key: Sealed


class ArtifactChange(Shape):
    header: Sealed | UnsetType = UNSET
    expected_header_version: Version | UnsetType = UNSET
    body: Sealed | UnsetType = UNSET
    expected_body_version: Version | UnsetType = UNSET


class NewAccessKey(Shape):
    data: Sealed


class AccessKeyChange(Shape):
    data: Sealed
    expected_version: Version


class Nothing(Shape):
    """Whatever is in it does not matter."""


# ── Socket events ───────────────────────────────────────────────────────────────────────────────


class Handshake(Shape):
    token: Annotated[str, Meta(min_length=1, max_length=1000)]
    client_type: str = "user-scoped"
    session_id: Id | None = None
    machine_id: Id | None = None
    app_state: str | None = None


class SocketMessage(Shape):
    sid: Id
    message: Sealed
    local_id: Id | None = None


class MetadataChange(Shape):
    sid: Id
    metadata: Sealed
    expected_version: Version


class StateChange(Shape):
    sid: Id
    agent_state: Sealed | None
    expected_version: Version


class MachineMetadataChange(Shape):
    machine_id: Id
    metadata: Sealed
    expected_version: Version


class MachineStateChange(Shape):
    machine_id: Id
    daemon_state: Sealed | None
    expected_version: Version


class SessionAlive(Shape):
    sid: Id
    time: float
    thinking: bool | None = None


class SessionEnd(Shape):
    sid: Id


class MachineAlive(Shape):
    machine_id: Id
    time: float


class Method(Shape):
    method: Annotated[str, Meta(min_length=1, max_length=500)]


class RpcCall(Shape):
    method: Annotated[str, Meta(min_length=1, max_length=500)]
    params: str


class AppState(Shape):
    state: str


class UsageReport(Shape):
    key: Annotated[str, Meta(max_length=200)]
    tokens: dict[str, float]
    cost: dict[str, float]
    session_id: Id | None = None


class ArtifactId(Shape):
    artifact_id: Id


class VersionedData(Shape):
    data: Sealed
    expected_version: Version


class SocketArtifactChange(Shape):
    artifact_id: Id
    header: VersionedData | None = None
    body: VersionedData | None = None


class AccessKeyGet(Shape):
    session_id: Id
    machine_id: Id
