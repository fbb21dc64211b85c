"""Wire types of the audit trail, as it is read."""

from datetime import datetime
from typing import Annotated, Any

import msgspec

from core import fields
from core.fields import about


class AuditEventView(msgspec.Struct, frozen=True, kw_only=True):
    """One action. ``actor`` is the id of an API key or of a person, the name of a process, or `operator` for a command.
    ``target`` is the id of what changed. A tenant sees `admin` as the actor of what an admin did to it, and none of its
    ``details``.
    """

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str | None, about("Id of the tenant that it is about; null without one.")]
    actor: Annotated[str, about("Id of the key or person, or name of the process; tenants see `admin` for an admin.")]
    action: Annotated[str, about("What was done, such as tenant.changed.")]
    target: Annotated[str, about("Id of the object.")]
    details: Annotated[dict[str, Any], about("What was set, without secrets.")]
    created_at: Annotated[datetime, fields.CREATED_AT]
