"""Wire types of the members room."""

from datetime import datetime
from typing import Annotated

import msgspec

from control_plane.api_keys.schemas import ApiKeyCreated
from control_plane.members.roles import PlatformRole, TenantRole
from core import fields
from core.fields import about

Email = Annotated[str, msgspec.Meta(min_length=3, max_length=254, pattern=r"^[!-~]+(?!\n)$")]
PersonName = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=fields.ONE_LINE)]


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A person with a role at the tenant."""

    id: Annotated[str, fields.ID]
    name: Annotated[str, fields.NAME]
    email: Annotated[str, fields.USER_EMAIL]
    role: Annotated[str, fields.ROLE]
    has_second_factor: Annotated[bool, about("Whether the person signs in with a second factor.")]
    last_seen_at: Annotated[datetime | None, about("When the person last used the console; null without a session.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class PlatformPerson(msgspec.Struct, frozen=True, kw_only=True):
    """A person who runs the platform."""

    id: Annotated[str, fields.ID]
    name: Annotated[str, fields.NAME]
    email: Annotated[str, fields.USER_EMAIL]
    role: Annotated[str, fields.ROLE]
    has_second_factor: Annotated[bool, about("Whether the person signs in with a second factor.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class MemberPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new role of a member. It ends the member's sessions."""

    role: Annotated[TenantRole, fields.ROLE]


class NewInvitation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to invite, and the role that the person gets."""

    email: Annotated[Email, fields.USER_EMAIL]
    role: Annotated[TenantRole, fields.ROLE] = "developer"


class NewPlatformInvitation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to invite to run the platform: an admin may do everything, support may read. Without ``email`` the person
    chooses the address.
    """

    role: Annotated[PlatformRole, fields.ROLE]
    email: Annotated[Email | None, fields.USER_EMAIL] = None


class InvitationView(msgspec.Struct, frozen=True, kw_only=True):
    """An invitation that was not accepted yet, without its link."""

    id: Annotated[str, fields.ID]
    email: Annotated[str | None, fields.USER_EMAIL]
    role: Annotated[str, fields.ROLE]
    created_at: Annotated[datetime, fields.CREATED_AT]
    expires_at: Annotated[datetime, fields.EXPIRES_AT]


class InvitationCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A new invitation with its link, which is shown once and works once. In a replay ``link`` is null."""

    id: Annotated[str, fields.ID]
    email: Annotated[str | None, fields.USER_EMAIL]
    role: Annotated[str, fields.ROLE]
    link: Annotated[str | None, about("Where the person accepts. It is shown once: send it to the person.")]
    created_at: Annotated[datetime, fields.CREATED_AT]
    expires_at: Annotated[datetime, fields.EXPIRES_AT]
    mailed: Annotated[bool, about("Whether the mail server took a mail with the link.")] = False


class NewDeviceAuthorization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command asks for a code."""

    label: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=fields.ONE_LINE)],
        about("Name of its machine, for the person who confirms it."),
    ]


class DeviceCodes(msgspec.Struct, frozen=True, kw_only=True):
    """``code`` is for the person, who types it at ``url``; ``device_code`` is the command's secret for its polls."""

    device_code: str
    code: str
    url: str
    poll_s: int
    expires_at: Annotated[datetime, fields.EXPIRES_AT]


class DevicePoll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command asks whether its code was confirmed."""

    device_code: Annotated[Annotated[str, msgspec.Meta(max_length=100)], about("The secret that came with the code.")]


class DeviceKey(msgspec.Struct, frozen=True, kw_only=True):
    """All null until a person has confirmed the code; then once the key of the command, and where it is used."""

    key: ApiKeyCreated | None = None
    tenant: str | None = None
    gateway_url: str | None = None


class TypedCode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code that a person typed, with or without its dash."""

    code: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=40)], about("Eight letters, as the command shows them.")
    ]


class DeviceLoginView(msgspec.Struct, frozen=True, kw_only=True):
    """A command that waits. ``id`` is its code, ``scopes`` what its key will be able to do."""

    id: Annotated[str, fields.ID]
    label: str
    address: str
    scopes: Annotated[list[str], fields.SCOPES]
    expires_at: Annotated[datetime, fields.EXPIRES_AT]
