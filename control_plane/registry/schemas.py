"""Wire types of the registry room: base models, adapters, aliases, revisions and their uploads."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from adapters.base_model_spec import BaseModelSpec, HubName

Status = Literal["uploading", "validating", "ready", "rejected"]
NAME: Final = re.compile("^[a-z0-9][a-z0-9-]{0,62}$")
"""Names of adapters and aliases."""

RevisionId = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]
_Weight = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1})]
Weights = Annotated[dict[RevisionId, _Weight], msgspec.Meta(extra_json_schema={"minProperties": 1})]
"""Documented as ``registry/adapters/aliases.py`` checks it, whose refusals name the revision and the fix."""


class NewBaseModel(BaseModelSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spec of a checkpoint, as ``adapters.base_model_spec.describe`` creates it."""


class BaseModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A base model, without its tokenizer and module table. ``names`` are further names, of mirrors and quantized
    copies, that an adapter's config may give.
    """

    id: str
    hub_name: str
    names: tuple[str, ...]
    context_tokens: int
    vocab_size: int
    tokenizer_sha256: str
    created_at: datetime


class BaseModelNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All further names of a base model; an empty list removes them."""

    names: Annotated[list[HubName], msgspec.Meta(max_length=100)]


class NewAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new adapter: its name, and its base model: the id, the Hub name, a further name, or the path of a local copy,
    as an adapter's config may have it.
    """

    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": NAME.pattern})]
    base_model: str


class AdapterView(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter. ``newest_ready`` is the newest ready revision (``revision`` is the same), with its rank and the rank
    class that serves it; all are null without a ready revision. ``serves`` is the revision that calls of the name get:
    that of the alias ``prod``, which the first ready revision sets; null where several share it. After ``prod`` was
    removed the name follows the newest ready revision. A ``pinned`` adapter is kept in replicas' host memory, within
    the plan's limit.
    """

    id: str
    name: str
    base_model: str
    revision: str | None
    newest_ready: str | None
    serves: str | None
    rank: int | None
    rank_class: int | None
    pinned: bool
    created_at: datetime


class AdapterPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to an adapter. An omitted field keeps its value."""

    pinned: bool | msgspec.UnsetType = msgspec.UNSET


class RankClassView(msgspec.Struct, frozen=True, kw_only=True):
    """One pool of a base model, identified by its largest rank. A slot takes ``slot_bytes`` even when it is empty; this
    memory would hold ``kv_pages_per_slot`` KV pages (null where the size of a page is unknown). The totals cover the
    slots of the live replicas. Replicas serve a class that is not ``registered``, but no revision is placed in it.
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
    """A file that will be uploaded."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]


class NewRevision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a new revision. A setting limits their number."""

    files: Annotated[list[AnnouncedFile], msgspec.Meta(min_length=1, max_length=1000)]


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """How to upload one part of a large file: PUT these bytes to this URL with exactly these headers."""

    number: int
    offset_bytes: int
    size_bytes: int
    url: str
    headers: dict[str, str]


class UploadView(msgspec.Struct, frozen=True, kw_only=True):
    """How to upload one file: PUT it to ``url`` with exactly these headers. Without a ``url``, PUT each of its
    ``parts`` to the part's URL, in any order and in parallel.
    """

    path: str
    method: str
    size_bytes: int
    url: str | None
    headers: dict[str, str]
    parts: list[PartView]


class RevisionCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A revision and its uploads. The URLs are valid until ``uploads_expire_at``, within two seconds. The list is empty
    after the revision has left the state uploading, or when its URLs are about to expire.
    """

    id: str
    status: Status
    uploads: list[UploadView]
    uploads_expire_at: datetime


class ReportView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the review: each problem has code, message, file, where and count. One cause is one problem:
    ``where`` is its first place, ``count`` the number of places. ``canary`` is the result of a replica's
    run: a prompt, the answers of base model and adapter, the largest difference in log-probability (nats), and the time
    to load.
    """

    problems: list[dict[str, Any]]
    notes: list[str]
    canary: dict[str, Any] | None = None


class RevisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A revision. ``sha256`` is the digest of the files that engines load, once it is ready. ``stage`` shows what a
    validating revision waits for: the check of its files, a canary run, and every gateway. ``report`` is present from
    the second stage on, and complete once the revision is decided.
    """

    id: str
    adapter: str
    status: Status
    stage: Literal["checking", "canary", "publishing"] | None
    rank: int | None
    rank_class: int | None
    sha256: str | None
    size_bytes: int
    report: ReportView | None
    created_at: datetime
    completed_at: datetime | None
    decided_at: datetime | None


class AliasTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The target of an alias: one ``revision``, or several by ``weights`` such as ``{"rev_a": 90, "rev_b": 10}``."""

    revision: RevisionId | None = None
    weights: Weights | None = None


class AliasView(msgspec.Struct, frozen=True, kw_only=True):
    """An alias. ``model`` is the model name in requests to the gateway. ``revision`` is null with several weights."""

    name: str
    adapter: str
    model: str
    revision: str | None
    weights: dict[str, int]
    updated_at: datetime


class AliasMoved(msgspec.Struct, frozen=True, kw_only=True):
    """An alias after a change; ``alias`` is null after its removal. ``previous`` is the target before the change, or
    null; sending it as the body of the same call undoes the change.
    """

    alias: AliasView | None
    previous: AliasTarget | None
