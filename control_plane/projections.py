"""Reads what is published from its rooms: six kinds of snapshot for gateways and three for replicas. ``publishing``
writes them to Redis.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlmodel import Session

from control_plane.api_keys import service as api_keys
from control_plane.fleet import cordons
from control_plane.groups import service as groups
from control_plane.pools import routes as pools
from control_plane.publishing.projection import Projection, Projections, Published, published
from control_plane.registry import base_models
from control_plane.registry.adapters import pins
from control_plane.registry.adapters import service as adapters
from control_plane.registry.revocations import service as revocations
from control_plane.settings import PublishingSettings
from control_plane.tenants import service as tenants


def projections(settings: PublishingSettings | None = None) -> Projections:
    """A reader for each kind of snapshot. Without ``settings`` the environment's are used."""
    revisions_max = (settings or PublishingSettings()).revisions_published_max
    return {
        "keys": Projection(
            some=_each(lambda session, field: published(api_keys.grant(session, field))),
            every=lambda session: ((field, published(value)) for field, value in api_keys.all_grants(session)),
        ),
        "tenants": Projection(
            some=lambda session, fields: {
                field: published(value) for field, value in tenants.grants(session, fields).items()
            },
            every=lambda session: ((field, published(value)) for field, value in tenants.all_grants(session)),
        ),
        "adapters": Projection(
            some=_each(lambda session, field: published(adapters.route(session, field, revisions_max=revisions_max))),
            every=lambda session: (
                (field, published(value)) for field, value in adapters.all_routes(session, revisions_max=revisions_max)
            ),
        ),
        "base_models": Projection(some=_each(_base_model), every=_base_models),
        "pools": Projection(
            some=_each(lambda session, field: published(pools.route(session, field))),
            every=lambda session: ((field, published(value)) for field, value in pools.all_routes(session)),
        ),
        "groups": Projection(
            some=_each(lambda session, field: published(groups.route(session, field))),
            every=lambda session: ((field, published(value)) for field, value in groups.all_routes(session)),
        ),
        "revocations": Projection(
            some=_each(lambda session, field: published(revocations.revocation(session, field))),
            every=lambda session: ((field, published(value)) for field, value in revocations.all_revocations(session)),
        ),
        "pins": Projection(
            some=_each(lambda session, field: published(pins.pin(session, field))),
            every=lambda session: ((field, published(value)) for field, value in pins.all_pins(session)),
        ),
        "cordons": Projection(
            some=_each(lambda session, field: published(cordons.published_cordon(session, field))),
            every=lambda session: ((field, published(value)) for field, value in cordons.published_cordons(session)),
        ),
    }


def _each(one: Callable[[Session, str], Published]) -> Callable[[Session, Sequence[str]], Mapping[str, Published]]:
    """Reads the fields one after the other."""
    return lambda session, fields: {field: one(session, field) for field in fields}


def _base_model(session: Session, field: str) -> Published:
    found = base_models.route(session, field)
    if found is None:
        return published(None)
    route, tokenizer = found
    return published(route, {hashlib.sha256(tokenizer).hexdigest(): tokenizer})


def _base_models(session: Session) -> Iterator[tuple[str, Published]]:
    for field, route, tokenizer in base_models.all_routes(session):
        yield field, published(route, {hashlib.sha256(tokenizer).hexdigest(): tokenizer})
