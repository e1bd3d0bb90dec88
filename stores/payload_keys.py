"""Keys that encrypt payloads: by id, so that they can be changed while old payloads stay readable.

One secret makes three keys. Chunks are named by an HMAC of their plain text and sealed with
AES-SIV, which is deterministic: equal chunks are equal under one key, and look unrelated under
another. Payloads that stay in Temporal's history are sealed with AES-GCM and a random nonce.
"""

import hashlib
import hmac
import os
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stores.chunks import Kind
from stores.errors import StoreConfigurationError, UnknownPayloadKeyError

SECRET_BYTES = 32

NONCE_BYTES = 12

FILE_PREFIX = "file:"


class WrongPayloadKeyError(ValueError):
    """What was read was not sealed by this key, or was changed since."""


def plain_id(kind: Kind, body: bytes) -> bytes:
    """Names a chunk that is not encrypted."""
    return hashlib.sha256(kind.encode() + b"\0" + body).digest()


@dataclass(frozen=True)
class PayloadKey:
    """One key. Equal secrets under two ids are two keys."""

    id: str
    secret: bytes

    def identify(self, kind: Kind, body: bytes) -> bytes:
        """Names a chunk; nobody without the key can tell whether a text is stored."""
        mac = hmac.new(self._names, kind.encode() + b"\0", hashlib.sha256)
        mac.update(body)
        return mac.digest()

    def seal_chunk(self, chunk_id: bytes, data: bytes) -> bytes:
        """Encrypt; the same again gives the same."""
        return self._chunks.encrypt(data, [chunk_id])

    def open_chunk(self, chunk_id: bytes, sealed: bytes) -> bytes:
        """Decrypt.

        Raises:
            WrongPayloadKeyError: it is not what this key has sealed under that id.
        """
        try:
            return self._chunks.decrypt(sealed, [chunk_id])
        except InvalidTag as error:
            raise WrongPayloadKeyError(self.id) from error

    def seal(self, data: bytes) -> bytes:
        """Encrypt what is not deduplicated; the same again gives something else."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._inline.encrypt(nonce, data, self.id.encode())

    def open(self, sealed: bytes) -> bytes:
        """Decrypt.

        Raises:
            WrongPayloadKeyError: it is not what this key has sealed.
        """
        try:
            nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
            return self._inline.decrypt(nonce, rest, self.id.encode())
        except (InvalidTag, ValueError) as error:
            raise WrongPayloadKeyError(self.id) from error

    @cached_property
    def _names(self) -> bytes:
        return self._derived("names of chunks", 32)

    @cached_property
    def _chunks(self) -> AESSIV:
        return AESSIV(self._derived("chunks", 64))

    @cached_property
    def _inline(self) -> AESGCM:
        return AESGCM(self._derived("payloads", 32))

    def _derived(self, use: str, length: int) -> bytes:
        information = f"perdure 1 {use} {self.id}".encode()
        return HKDF(SHA256(), length, salt=None, info=information).derive(self.secret)


@dataclass(frozen=True)
class Keyring:
    """All keys that this process can read with, and which of them it writes with.

    Attributes:
        keys: by id.
        current: id of the key for workspaces that have none of their own; `None`: those are not
            encrypted.
        workspaces: workspace id to key id.
    """

    keys: Mapping[str, PayloadKey]
    current: str | None = None
    workspaces: Mapping[str, str] | None = None

    def for_workspace(self, workspace_id: str) -> PayloadKey | None:
        """The key to write with.

        Raises:
            UnknownPayloadKeyError: it is not among `keys`.
        """
        key_id = (self.workspaces or {}).get(workspace_id, self.current)
        return None if key_id is None else self.get(key_id)

    def get(self, key_id: str) -> PayloadKey:
        """The key to read with.

        Raises:
            UnknownPayloadKeyError: it is not among `keys`.
        """
        key = self.keys.get(key_id)
        if key is None:
            raise UnknownPayloadKeyError(key_id, tuple(sorted(self.keys)))
        return key


NO_KEYS = Keyring(keys={})


def load_keyring(
    sources: Mapping[str, str], *, current: str | None, workspaces: Mapping[str, str]
) -> Keyring:
    """The keyring that settings describe.

    Args:
        sources: key id to 32 bytes in base64, or to `file:` and the path of a file with them.
        current: see `Keyring`.
        workspaces: see `Keyring`.

    Raises:
        StoreConfigurationError: a secret cannot be read or has another length. It is not shown.
        UnknownPayloadKeyError: a key is named that is not among the sources.
    """
    keys = {each: PayloadKey(each, _secret(each, source)) for each, source in sources.items()}
    ring = Keyring(keys=keys, current=current, workspaces=dict(workspaces))
    for named in (current, *workspaces.values()):
        if named is not None:
            ring.get(named)
    return ring


def _secret(key_id: str, source: str) -> bytes:
    try:
        text = source
        if source.startswith(FILE_PREFIX):
            text = Path(source.removeprefix(FILE_PREFIX)).read_text(encoding="ascii")
        secret = b64decode(text.strip(), validate=True)
    except OSError as error:
        msg = f"payload key {key_id!r} cannot be read: {error}"
        raise StoreConfigurationError(msg) from error
    except (Base64Error, ValueError) as error:
        msg = f"payload key {key_id!r} is not base64; `openssl rand -base64 32` makes one"
        raise StoreConfigurationError(msg) from error
    if len(secret) != SECRET_BYTES:
        msg = (
            f"payload key {key_id!r} has {len(secret)} bytes, and it must be {SECRET_BYTES}; "
            "`openssl rand -base64 32` makes one"
        )
        raise StoreConfigurationError(msg)
    return secret
