"""The further names by which a base model is known: mirrors, and quantized copies that adapters are trained on.

Trainers write such a name into ``adapter_config.json``. Names are compared without regard to case, and each belongs to
one base model.
"""

from collections.abc import Collection

from sqlmodel import Session, col, delete, select

from adapters.base_model_spec import HUB_NAME
from control_plane.registry.models import BaseModel, BaseModelName
from core.errors import Conflict, InvalidRequest


def replace(session: Session, base_model: str, names: Collection[str]) -> None:
    """Replace the names of a base model. Raises InvalidRequest, and Conflict for a name of another base model."""
    if bad := [name for name in names if not HUB_NAME.fullmatch(name)]:
        raise InvalidRequest(f"names: {bad[0][:100]!r} is no name on the Hub, such as 'org/model'.", param="names")
    wanted = {name.casefold(): name for name in names}
    taken = owners(session)
    if other := [name for key, name in wanted.items() if taken.get(key, base_model) != base_model]:
        owner = taken[other[0].casefold()]
        raise Conflict(f"names: {other[0]!r} is a name of {owner}.", code="name_taken", param="names")
    session.exec(delete(BaseModelName).where(col(BaseModelName.base_model) == base_model))
    session.add_all(BaseModelName(key=key, name=name, base_model=base_model) for key, name in wanted.items())
    session.flush()


def names_of(session: Session, base_models: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The further names of each of these base models, in alphabetical order."""
    rows = session.exec(
        select(BaseModelName).where(col(BaseModelName.base_model).in_(base_models)).order_by(col(BaseModelName.key))
    ).all()
    return {each: tuple(row.name for row in rows if row.base_model == each) for each in base_models}


def owners(session: Session) -> dict[str, str]:
    """The base model of every id, Hub name and further name, by the name in lower case."""
    found = {row.key: row.base_model for row in session.exec(select(BaseModelName))}
    for base_model, hub_name in session.exec(select(BaseModel.id, BaseModel.hub_name)):
        found |= {hub_name.casefold(): base_model, base_model.casefold(): base_model}
    return found
