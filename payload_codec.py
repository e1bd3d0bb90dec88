"""Payload codecs: encryption of what stays in the history, after a codec of the user's own."""

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1 import ExternalStorageReference
from temporalio.converter import PayloadCodec, SerializationContext, WithSerializationContext

from stores.errors import StoreError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.payload_keys import Keyring, WrongPayloadKeyError
from workflows.payloads import PLACE_KEY, WORKSPACE_KEY

ENCODING = "encoding"

ENCRYPTED = b"binary/perdure-encrypted"

KEY_ID = "perdure-key"

_LABELS = (PLACE_KEY, WORKSPACE_KEY)

_REFERENCE = ExternalStorageReference.DESCRIPTOR.full_name.encode()


def is_reference(payload: Payload) -> bool:
    """Whether the payload stands for one that is stored beside the history."""
    return payload.metadata.get("messageType") == _REFERENCE


def chained_codec(
    given: PayloadCodec | None, keys: Keyring | None, *, stored_from_bytes: int | None
) -> PayloadCodec | None:
    """The user's codec, then encryption; `None` when there is neither.

    Args:
        given: the user's, or a codec made here, which stays as it is.
        keys: `None`: nothing is encrypted.
        stored_from_bytes: payloads from this size on are encrypted when they are stored; `None`:
            none is stored.
    """
    if isinstance(given, SparingCodec) or (given is None and keys is None):
        return given
    codecs = [given] if given else []
    if keys is not None:
        codecs.append(EncryptionCodec(keys, stored_from_bytes=stored_from_bytes))
    if any(isinstance(each, WithSerializationContext) for each in codecs):
        return ContextualSparingCodec(codecs)
    return SparingCodec(codecs)


class EncryptionCodec(PayloadCodec):
    """Encrypts whole payloads, metadata included, with the key of their workspace."""

    def __init__(self, keys: Keyring, *, stored_from_bytes: int | None = None) -> None:
        self._keys = keys
        self._stored_from_bytes = stored_from_bytes

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt those that stay in the history.

        Raises:
            UnknownPayloadKeyError: the workspace's key is not here.
        """
        return [self._encode(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt those that were encrypted; others are as they were.

        Raises:
            UnknownPayloadKeyError: the key is not here; the message names it.
            StoreError: the key is another one than it was, or the payload was changed.
        """
        return [self._decode(payload) for payload in payloads]

    def _encode(self, payload: Payload) -> Payload:
        limit = self._stored_from_bytes
        if limit is not None and PLACE_KEY not in payload.metadata and payload.ByteSize() >= limit:
            return payload
        workspace = payload.metadata.get(WORKSPACE_KEY, DEFAULT_WORKSPACE.encode()).decode()
        key = self._keys.for_workspace(workspace)
        if key is None:
            return payload
        return Payload(
            metadata={ENCODING: ENCRYPTED, KEY_ID: key.id.encode()},
            data=key.seal(payload.SerializeToString()),
        )

    def _decode(self, payload: Payload) -> Payload:
        if payload.metadata.get(ENCODING) != ENCRYPTED:
            return payload
        key = self._keys.get(payload.metadata[KEY_ID].decode())
        try:
            return Payload.FromString(key.open(payload.data))
        except WrongPayloadKeyError as error:
            message = (
                f"a payload cannot be decrypted with key {key.id!r}: its secret is another one "
                "than when it was written, or the payload was changed"
            )
            raise StoreError(message) from error


class SparingCodec(PayloadCodec):
    """Codecs in a row, spared what never leaves the process and what only refers to a payload."""

    def __init__(self, codecs: Sequence[PayloadCodec]) -> None:
        self.codecs = tuple(codecs)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode; what is written on a payload for codec and storage is on it afterwards, too."""
        encoded = list(payloads)
        chosen = [index for index, each in enumerate(payloads) if not _is_spared(each)]
        some = [payloads[index] for index in chosen]
        for codec in self.codecs if some else ():
            made = await codec.encode(some)
            some = [_with_labels_of(*each) for each in zip(some, made, strict=True)]
        for index, payload in zip(chosen, some, strict=True):
            encoded[index] = payload
        return encoded

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode, in the opposite order."""
        decoded = list(payloads)
        chosen = [index for index, each in enumerate(payloads) if not _is_spared(each)]
        some = [payloads[index] for index in chosen]
        for codec in reversed(self.codecs) if some else ():
            some = await codec.decode(some)
        for index, payload in zip(chosen, some, strict=True):
            decoded[index] = payload
        return decoded


class ContextualSparingCodec(SparingCodec, WithSerializationContext):
    """The same for a codec that asks what its payloads are for."""

    def with_context(self, context: SerializationContext) -> "ContextualSparingCodec":
        """See `WithSerializationContext.with_context`."""
        return ContextualSparingCodec(
            [
                each.with_context(context) if isinstance(each, WithSerializationContext) else each
                for each in self.codecs
            ]
        )


def _is_spared(payload: Payload) -> bool:
    return payload.metadata.get(PLACE_KEY) == b"local" or is_reference(payload)


def _with_labels_of(given: Payload, made: Payload) -> Payload:
    labels = {each: given.metadata[each] for each in _LABELS if each in given.metadata}
    if all(made.metadata.get(name) == value for name, value in labels.items()):
        return made
    labelled = Payload()
    labelled.CopyFrom(made)
    for name, value in labels.items():
        labelled.metadata[name] = value
    return labelled
