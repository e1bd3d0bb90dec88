"""The payloads of a history: what their data converter has to be able to read."""

from collections.abc import Iterator

from google.protobuf.message import Message
from temporalio.api.common.v1 import Header, Payload, SearchAttributes
from temporalio.api.history.v1 import HistoryEvent

from workflows.recorded_commits import LOCAL_ACTIVITY_MARKER

_NOT_ENCODED = (Header, SearchAttributes)
"""What a worker writes without its data converter."""


def payloads_in(event: HistoryEvent) -> Iterator[Payload]:
    """Each payload of an event that went through a data converter; to be changed in place."""
    marker = event.marker_recorded_event_attributes
    if marker.marker_name == LOCAL_ACTIVITY_MARKER:
        # Beside the result is data of the SDK's core, which no converter has seen.
        if "result" in marker.details:
            yield from marker.details["result"].payloads
        yield from _payloads_in(marker.failure)
        return
    yield from _payloads_in(event)


def _payloads_in(message: Message) -> Iterator[Payload]:
    if isinstance(message, Payload):
        yield message
        return
    if isinstance(message, _NOT_ENCODED):
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Message):
            yield from _payloads_in(value)
        elif field.message_type.GetOptions().map_entry:
            for each in value.values():
                if isinstance(each, Message):
                    yield from _payloads_in(each)
        else:
            for each in value:
                yield from _payloads_in(each)
