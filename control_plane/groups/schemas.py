"""Wire types of the groups room."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec

from core import fields
from core.contracts.routes import RoutingRule
from core.fields import about

MEMBERS_MAX: Final = 4
_Name = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}(?!\n)$"),
    about("Name that callers send as `model`. The group `auto` is the default one."),
]
_Rule = Annotated[
    RoutingRule,
    about(
        "weighted: each session gets a member by its weight; classified: the first member where it should suffice, "
        "else the last; overflow: the last member, and a smaller one where the wait would be too long; cascade: the "
        "first member, and the last where that answer is unsure, a refusal or not the JSON that was asked for."
    ),
]
_Threshold = Annotated[
    Annotated[int, msgspec.Meta(ge=1, le=99)],
    about(
        "Rule classified: how sure, in percent, it must be that the first member suffices. Rule cascade: the least "
        "probability, in percent, that the tokens of the first member's answer may have in the geometric mean."
    ),
]
_Patience = Annotated[
    Annotated[int, msgspec.Meta(ge=0, le=600_000)],
    about("Rule overflow: milliseconds that a request waits for a member before it gets a smaller one."),
]
_Priority = Annotated[
    Annotated[int, msgspec.Meta(ge=-1, le=9)],
    about(
        "Rules overflow and classified: plans with a `tier` up to this wait for the last member, or get it at once; -1 "
        "for no plan."
    ),
]
_Escalations = Annotated[
    Annotated[int, msgspec.Meta(ge=1, le=100)],
    about("Rule cascade: above this share of replaced answers, in percent, the last member answers alone."),
]


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a group."""

    model: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=fields.ONE_LINE)],
        about("Name of one of the tenant's adapters, or id of a base model."),
    ]
    weight: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)], about("Rule weighted: its share of the sessions.")
    ] = 1


_Members = Annotated[
    Annotated[Sequence[Member], msgspec.Meta(min_length=1, max_length=MEMBERS_MAX)],
    about("The models in order of quality, the least able first."),
]


class NewModelGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of models."""

    name: _Name
    rule: _Rule
    members: _Members
    threshold_percent: _Threshold = 50
    patience_ms: _Patience = 2_000
    priority_tier_max: _Priority = 0
    escalations_percent_max: _Escalations = 60


class ModelGroupPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a group. An omitted field keeps its value."""

    rule: _Rule | msgspec.UnsetType = msgspec.UNSET
    members: _Members | msgspec.UnsetType = msgspec.UNSET
    threshold_percent: _Threshold | msgspec.UnsetType = msgspec.UNSET
    patience_ms: _Patience | msgspec.UnsetType = msgspec.UNSET
    priority_tier_max: _Priority | msgspec.UnsetType = msgspec.UNSET
    escalations_percent_max: _Escalations | msgspec.UnsetType = msgspec.UNSET


class ModelGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group of models."""

    name: _Name
    rule: _Rule
    members: _Members
    threshold_percent: _Threshold
    patience_ms: _Patience
    priority_tier_max: _Priority
    escalations_percent_max: _Escalations
    created_at: Annotated[datetime, fields.CREATED_AT]
