"""Wire types of the notifications room. Answers are ``billing.notifications.views``."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from billing.notifications.views import EndpointKind, EventTypeName
from core import fields
from core.fields import about

EventTypeNames = Annotated[tuple[EventTypeName, ...], msgspec.Meta(max_length=50)]
Address = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
Code = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class NewEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new endpoint: an e-mail address, or the https URL of a webhook. Without ``event_types`` it gets all types. The
    address cannot be changed later.
    """

    kind: Annotated[EndpointKind, fields.ENDPOINT_KIND]
    address: Annotated[Address, fields.ENDPOINT_ADDRESS]
    event_types: Annotated[EventTypeNames, fields.EVENT_TYPES] = ()


class EndpointPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change. An omitted field keeps its value."""

    event_types: Annotated[EventTypeNames | msgspec.UnsetType, fields.EVENT_TYPES] = msgspec.UNSET
    status: Annotated[Literal["active", "disabled"] | msgspec.UnsetType, fields.STATUS] = msgspec.UNSET


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code that was sent to the address."""

    code: Annotated[Code, about("The code from the message to the address.")]


class ReplaySince(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which instant on missed messages are sent again."""

    since: Annotated[
        datetime, msgspec.Meta(tz=True), about("From which instant on messages are sent again, with an offset.")
    ]
