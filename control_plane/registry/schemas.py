"""Wire types of the registry room: base models, adapters, revisions and what their files must look like."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from adapters.base_model_spec import BaseModelSpec

Status = Literal["uploading", "validating", "ready", "rejected"]
RevisionId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class NewBaseModel(BaseModelSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spec that ``adapters.base_model_spec.describe`` makes of a checkpoint, as JSON."""


class BaseModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A base model without its tokenizer and module table."""

    id: str
    hub_name: str
    context_tokens: int
    vocab_size: int
    tokenizer_sha256: str
    created_at: datetime


class NewAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name for a fine-tune, and the id or Hub name of the base model it was trained on."""

    name: str
    base_model: str


class AdapterView(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter. ``revision`` is the newest ready one, with its rank and the rank class that serves it; all three are
    null until there is one. ``pinned``: kept in replicas' host memory, as far as the plan pays for it.
    """

    id: str
    name: str
    base_model: str
    revision: str | None
    rank: int | None
    rank_class: int | None
    pinned: bool
    created_at: datetime


class AdapterPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What changes; a field left out stays as it is."""

    pinned: bool | msgspec.UnsetType = msgspec.UNSET


class RankClassView(msgspec.Struct, frozen=True, kw_only=True):
    """One pool of a base model by its largest rank. A slot takes ``slot_bytes``, filled or not: memory that would hold
    ``kv_pages_per_slot`` KV pages (null where a page's size is not known). The totals are over the slots of the live
    replicas. One that is not ``registered`` is served by replicas, but no revision is placed in it.
    """

    rank: int
    registered: bool
    slot_bytes: int
    kv_pages_per_slot: int | None
    replicas: int
    slots: int
    slots_bytes: int
    kv_pages_of_slots: int | None
    adapters: int


class AnnouncedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file about to be uploaded."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class NewRevision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a new revision. How many there may be is a setting."""

    files: Annotated[list[AnnouncedFile], msgspec.Meta(min_length=1, max_length=1000)]


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """How to send one part of a large file: these bytes of it to this URL with exactly these headers."""

    number: int
    offset_bytes: int
    size_bytes: int
    url: str
    headers: dict[str, str]


class UploadView(msgspec.Struct, frozen=True, kw_only=True):
    """How to send one file: whole to ``url`` with exactly these headers, or, where there is no ``url``, each of its
    ``parts`` to the part's own, in any order and side by side.
    """

    path: str
    method: str
    size_bytes: int
    url: str | None
    headers: dict[str, str]
    parts: list[PartView]


class RevisionCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A revision and what is to be sent for it. The URLs are good until ``uploads_expire_at``, to within two seconds;
    there are none once the revision is past uploading or its URLs are about to expire.
    """

    id: str
    status: Status
    uploads: list[UploadView]
    uploads_expire_at: datetime


class ReportView(msgspec.Struct, frozen=True, kw_only=True):
    """What was found: each problem has code, message, file and where. ``canary`` is what a replica's run of it gave:
    a prompt, what base and adapter answered, the largest difference in log-probability (nats), and the time to load.
    """

    problems: list[dict[str, Any]]
    notes: list[str]
    canary: dict[str, Any] | None = None


class RevisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A revision. ``sha256`` is the digest of what engines load, once ready. ``stage`` says what a validating one waits
    for: its files are checked, then a replica runs it. ``report`` is there from the second on, complete once decided.
    """

    id: str
    adapter: str
    status: Status
    stage: Literal["checking", "canary"] | None
    rank: int | None
    rank_class: int | None
    sha256: str | None
    size_bytes: int
    report: ReportView | None
    created_at: datetime
    completed_at: datetime | None
    decided_at: datetime | None


class AliasTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an alias points at: one ``revision``, or several by ``weights`` such as ``{"rev_a": 90, "rev_b": 10}``."""

    revision: RevisionId | None = None
    weights: dict[RevisionId, int] | None = None


class AliasView(msgspec.Struct, frozen=True, kw_only=True):
    """An alias. ``model`` is what callers of the gateway write; ``revision`` is there when it is one only."""

    name: str
    adapter: str
    model: str
    revision: str | None
    weights: dict[str, int]
    updated_at: datetime


class AliasMoved(msgspec.Struct, frozen=True, kw_only=True):
    """An alias after it was set, or removed: then ``alias`` is null. ``previous`` is what it pointed at before or null;
    sent as the body of the same call it takes the move back. ``acknowledged`` says that from now on every live gateway
    decides by this; ``gateways`` counts those that do, after ``waited_ms``.
    """

    alias: AliasView | None
    previous: AliasTarget | None
    acknowledged: bool
    gateways: int
    waited_ms: int
