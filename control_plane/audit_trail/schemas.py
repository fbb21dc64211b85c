"""Wire types of the audit trail, as it is read."""

from datetime import datetime
from typing import Any

import msgspec


class AuditEventView(msgspec.Struct, frozen=True, kw_only=True):
    """One action. ``actor`` is the id of an API key, the name of a process, or `operator` for a command. ``target`` is
    the id of what changed. A tenant sees `admin` as the actor of what an admin did to it, and none of its ``details``.
    """

    id: str
    tenant_id: str | None
    actor: str
    action: str
    target: str
    details: dict[str, Any]
    created_at: datetime
