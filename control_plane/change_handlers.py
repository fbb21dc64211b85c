"""What tenants and plans call when limits or a status change, so that rooms above them can react in the same
transaction.

Only the types live here; ``dependencies`` connects them to the rooms that react.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session


@dataclass(frozen=True, kw_only=True)
class ChangeHandlers:
    """Each handler works inside the caller's open transaction, which also holds the change itself.

    ``on_limits_changed`` takes the ids of tenants whose limits or status may have changed, ``on_plan_changed`` the id
    of a plan with a new version, and ``on_status_set`` a tenant's id and the status that an admin has set.
    """

    on_limits_changed: Callable[[Session, Collection[str]], None]
    on_plan_changed: Callable[[Session, str], None]
    on_status_set: Callable[[Session, str, Literal["active", "suspended"]], None]
