"""The data converter that client, worker, replayer and command line share."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import ValidationError
from pydantic_ai.durable_exec.temporal import PydanticAIPayloadConverter
from pydantic_core import PydanticSerializationError
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    FailureConverter,
    SerializationContext,
)
from temporalio.exceptions import ApplicationError

from activities.payloads import Undecoded
from payload_codec import chained_codec
from payload_driver import PayloadDriver, ReplayDriver, external_storage
from settings import Settings
from stores.errors import StoreError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.payload_keys import Keyring, load_keyring
from stores.payload_store import ChunkStore, PayloadStore
from workflows.lineage import current_scope
from workflows.payloads import (
    LARGEST_INLINE_BYTES,
    LARGEST_PAYLOADS_BYTES,
    SubmittedInput,
    check_size,
    describe,
    going_to,
    label,
)


class PerdurePayloadConverter(PydanticAIPayloadConverter):
    """Pydantic's JSON, with errors that end a run instead of repeating its task without end."""

    largest_bytes: ClassVar[int] = LARGEST_PAYLOADS_BYTES
    """Of the payloads of one call."""

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Encode; what cannot be encoded or is too large is an error here, and is not tried again.

        Inside a workflow a value that cannot be encoded stays pydantic's error: pydantic-ai knows
        which values it passes, and says so when it fails the run.
        """
        names = [type(value).__name__ for value in values]
        try:
            payloads = super().to_payloads(values)
        except PydanticSerializationError as error:
            if workflow.in_workflow():
                raise
            message = f"A payload of ({', '.join(names)}) cannot be encoded as JSON: {error}"
            raise ApplicationError(
                message, type="UnserializableValueError", non_retryable=True
            ) from error
        parts = [(name, len(each.data)) for name, each in zip(names, payloads, strict=True)]
        if activity.in_activity():
            with going_to(f"result of activity {activity.info().activity_type!r}"):
                check_size(parts, self.largest_bytes)
        else:
            check_size(parts, self.largest_bytes)
        for value, payload in zip(values, payloads, strict=True):
            label(payload, _workspace_of(value))
        return payloads

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """Decode; a submitted input that does not fit fails its workflow, with the bad path."""
        try:
            return super().from_payloads(payloads, type_hints)
        except ValidationError as error:
            if any(_is_submitted(hint) for hint in type_hints or ()):
                message = f"invalid input: {describe(error)}"
                raise ApplicationError(
                    message, type="InvalidInputError", non_retryable=True
                ) from error
            raise


class InlinePayloadConverter(PerdurePayloadConverter):
    """The same where nothing is stored beside the history, so Temporal's limit is the limit."""

    largest_bytes = LARGEST_INLINE_BYTES


def _is_submitted(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, SubmittedInput)


def _workspace_of(value: object) -> str:
    """Of a submitted input, or of the run that the code here works for."""
    if isinstance(value, SubmittedInput):
        return str(getattr(value, "workspace_id", DEFAULT_WORKSPACE))
    scope = current_scope.get()
    return scope.lineage.workspace_id if scope else DEFAULT_WORKSPACE


class PerdureDataConverter(DataConverter):
    """Puts off what an activity is given while the store of payloads is away.

    The interceptor of `activities.payloads` reads it then, under heartbeats.
    """

    def with_context(self, context: SerializationContext) -> "PerdureDataConverter":
        """See `DataConverter.with_context`."""
        converter = super().with_context(context)
        if isinstance(context, ActivitySerializationContext) and not context.is_local:
            return _with_fields_of(converter, _ActivityDataConverter)
        return converter


class _ActivityDataConverter(PerdureDataConverter):
    async def decode(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        try:
            return await super().decode(payloads, type_hints)
        except StoreError as error:
            if not error.retryable or type_hints is None:  # heartbeat details come without
                raise
            later: list[Any] = [Undecoded(partial(super().decode, payloads, type_hints))]
            return later + [None] * (len(payloads) - 1)


def _with_fields_of(
    converter: DataConverter, kind: type["PerdureDataConverter"]
) -> "PerdureDataConverter":
    """The same as another class, contexts included."""
    copied = object.__new__(kind)
    for name, value in vars(converter).items():
        object.__setattr__(copied, name, value)
    return copied


DATA_CONVERTER = PerdureDataConverter(
    payload_converter_class=InlinePayloadConverter,
    failure_converter_class=DefaultFailureConverter,
)
"""Without storage and keys: for histories that hold all their payloads themselves."""


def build_data_converter(
    settings: Settings,
    *,
    chunks: ChunkStore | None = None,
    base: DataConverter = DATA_CONVERTER,
) -> DataConverter:
    """The converter for these settings.

    Args:
        settings: whether payloads are stored beside the history, from which size on, and the keys.
        chunks: where they are stored; by default the settings' MongoDB, through a connection of its
            own that opens when the first payload asks for it.
        base: whose codec, failure converter and storage are kept. Its codec encodes first; what it
            makes of large payloads is cut and stored.

    Raises:
        StoreConfigurationError, UnknownPayloadKeyError: the keys are no keys.
        ValueError: `base` has a payload converter that does not know pydantic-ai's messages.
    """
    keys = load_keyring(
        settings.payload_keys,
        current=settings.payload_key,
        workspaces=settings.payload_workspace_keys,
    )
    storage = base.external_storage
    if storage is None and settings.stores_payloads:
        storage = external_storage(
            _driver(settings, keys, chunks), settings.payload_threshold_bytes
        )
    codec = chained_codec(
        base.payload_codec,
        keys if settings.payload_keys else None,
        stored_from_bytes=storage.payload_size_threshold if storage else None,
    )
    return PerdureDataConverter(
        payload_converter_class=_payload_converter_class(base, is_stored=storage is not None),
        payload_codec=codec,
        failure_converter_class=_failure_converter_class(base, settings),
        external_storage=storage,
    )


def _payload_converter_class(
    base: DataConverter, *, is_stored: bool
) -> type[PerdurePayloadConverter]:
    given = base.payload_converter_class
    if given is DataConverter.default.payload_converter_class or given is InlinePayloadConverter:
        return PerdurePayloadConverter if is_stored else InlinePayloadConverter
    if issubclass(given, PerdurePayloadConverter):
        return given
    message = (
        f"a data converter with payload converter {given.__name__} cannot be used: it does not "
        "encode messages as pydantic-ai needs. Derive it from converter.PerdurePayloadConverter"
    )
    raise ValueError(message)


def _failure_converter_class(base: DataConverter, settings: Settings) -> type[FailureConverter]:
    """Errors tell what tools were given: where that is not to be read, their words are encrypted.

    Failures that were written otherwise are read as ever.
    """
    given = base.failure_converter_class
    is_ours = given is DefaultFailureConverter
    if is_ours and settings.redacts and settings.payload_keys:
        return DefaultFailureConverterWithEncodedAttributes
    return given


def _driver(settings: Settings, keys: Keyring, chunks: ChunkStore | None) -> PayloadDriver:
    if chunks is None:
        from stores.opening import open_chunk_store  # noqa: PLC0415 - the driver takes long

        chunks = open_chunk_store(str(settings.mongodb_uri), settings.mongodb_database)
    return PayloadDriver(PayloadStore(chunks, keys=keys, cache_bytes=settings.payload_cache_bytes))


def for_replay(converter: DataConverter) -> DataConverter:
    """The same converter, which writes nothing."""
    storage = converter.external_storage
    driver = storage.drivers[0] if storage else None
    if storage is None or not isinstance(driver, PayloadDriver):
        return converter
    reading = external_storage(ReplayDriver(driver.payloads), storage.payload_size_threshold)
    return replace(converter, external_storage=reading)


async def close_payloads(converter: DataConverter) -> None:
    """Close what the converter has opened to store payloads. Quiet a second time."""
    storage = converter.external_storage
    for driver in storage.drivers if storage else ():
        if isinstance(driver, PayloadDriver):
            await driver.aclose()
