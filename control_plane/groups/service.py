"""Groups of models: a tenant's own, and those of the platform, which every tenant may call. Which member serves a
request, gateways decide.

A member that is deleted later stays in its group, and gateways skip it. The owner of a group is the tenant of the key
that made it; "" is the platform, whose groups admins make.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, select

from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.groups.models import ModelGroup
from control_plane.groups.schemas import Member, ModelGroupPatch, ModelGroupView, NewModelGroup
from control_plane.publishing.outbox import publish_change
from control_plane.registry import base_models
from control_plane.registry.adapters import service as adapters
from core import clock
from core.contracts.routes import GroupRoute
from core.errors import Conflict, InvalidRequest, NotFound
from core.struct_types import view_of

PLATFORM: Final = ""
_GROUPS_MAX: Final = 100


def create(session: Session, new: NewModelGroup, principal: Principal) -> ModelGroupView:
    """Add a group. Raises InvalidRequest, NotFound for a member that the owner does not have, and Conflict."""
    owner = principal.tenant_id or PLATFORM
    if base_models.exists(session, new.name) or (owner and _has_adapter(session, owner, new.name)):
        raise Conflict(
            f"name: {new.name!r} is a model already. Choose another name.", code="group_exists", param="name"
        )
    mine = select(ModelGroup.name).where(ModelGroup.owner == owner)
    if len(session.exec(mine.limit(_GROUPS_MAX)).all()) == _GROUPS_MAX:
        raise Conflict(f"There are {_GROUPS_MAX} groups, which is the most. Delete one.", code="too_many_groups")
    row = ModelGroup(owner=owner, **msgspec.to_builtins(new))
    _check(session, row)
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(
            f"name: there is a group {new.name!r}. Choose another name, or change the group.",
            code="group_exists",
            param="name",
        ) from error
    _publish(session, row)
    audited(session, principal, "model_group.created", row.name, details=new)
    return view_of(row, ModelGroupView)


def change(session: Session, name: str, patch: ModelGroupPatch, principal: Principal) -> ModelGroupView:
    """Change a group. Raises NotFound and InvalidRequest."""
    row = _find(session, principal, name, lock=True)
    changes = msgspec.to_builtins(patch)  # without what is unset
    for field, value in changes.items():
        setattr(row, field, value)
    _check(session, row)
    session.add(row)
    _publish(session, row)
    audited(session, principal, "model_group.changed", name, details=patch)
    return view_of(row, ModelGroupView)


def delete(session: Session, name: str, principal: Principal) -> None:
    """Remove a group; its members stay. Raises NotFound."""
    row = _find(session, principal, name, lock=True)
    session.delete(row)
    _publish(session, row)
    audited(session, principal, "model_group.deleted", name)


def every(session: Session, principal: Principal) -> list[ModelGroupView]:
    """All groups of an owner, by name."""
    owned = select(ModelGroup).where(ModelGroup.owner == (principal.tenant_id or PLATFORM))
    rows = session.exec(owned.order_by(ModelGroup.name))
    return [view_of(row, ModelGroupView) for row in rows]


def read(session: Session, name: str, principal: Principal) -> ModelGroupView:
    """One group. Raises NotFound."""
    return view_of(_find(session, principal, name), ModelGroupView)


def route(session: Session, field: str) -> GroupRoute | None:
    """The published form of the group ``<owner>/<name>``; None where there is none."""
    owner, _, name = field.partition("/")
    row = session.get(ModelGroup, (owner, name))
    return None if row is None else _route(row)


def all_routes(session: Session) -> Iterator[tuple[str, GroupRoute]]:
    """The published form of every group, by its field."""
    for row in session.exec(select(ModelGroup).execution_options(yield_per=1000)):
        yield _field_of(row), _route(row)


def _check(session: Session, row: ModelGroup) -> None:
    """Raise InvalidRequest or NotFound naming the first field that is wrong."""
    members = msgspec.convert(row.members, tuple[Member, ...])
    if row.rule in ("classified", "cascade") and len(members) != 2:
        raise InvalidRequest(
            f"members: the rule {row.rule} chooses between 2 members; there are {len(members)}. List the smaller one "
            "and the better one.",
            code="invalid_group",
            param="members",
        )
    for place, member in enumerate(members):
        param = f"members[{place}].model"
        if member.model in [each.model for each in members[:place]]:
            raise InvalidRequest(
                f"{param}: {member.model!r} is a member already. Remove one of the two.",
                code="invalid_group",
                param=param,
            )
        if base_models.exists(session, member.model):
            continue
        if row.owner and _has_adapter(session, row.owner, member.model):
            continue
        if _is_group(session, row, member.model):
            raise InvalidRequest(
                f"{param}: {member.model!r} is a group. List its members instead: a group holds adapters and base "
                "models only.",
                code="member_is_a_group",
                param=param,
            )
        known = "GET /v1/models at the gateway lists your models" if row.owner else "A platform's group has base models"
        raise NotFound(
            f"{param}: there is no model {member.model[:100]!r}. {known}.", code="member_not_found", param=param
        )


def _is_group(session: Session, row: ModelGroup, name: str) -> bool:
    return name == row.name or any(session.get(ModelGroup, (owner, name)) for owner in {row.owner, PLATFORM})


def _has_adapter(session: Session, tenant_id: str, name: str) -> bool:
    try:
        adapters.find(session, tenant_id=tenant_id, name=name)
    except NotFound:
        return False
    return True


def _find(session: Session, principal: Principal, name: str, *, lock: bool = False) -> ModelGroup:
    row = session.get(ModelGroup, (principal.tenant_id or PLATFORM, name), with_for_update=lock)
    if row is None:
        raise NotFound("Model group not found.", code="group_not_found")
    return row


def _publish(session: Session, row: ModelGroup) -> None:
    publish_change(session, "groups", _field_of(row))


def _field_of(row: ModelGroup) -> str:
    return f"{row.owner}/{row.name}"


def _route(row: ModelGroup) -> GroupRoute:
    return view_of(row, GroupRoute, tenant_id=row.owner, created_at_ms=clock.to_ms(row.created_at))
