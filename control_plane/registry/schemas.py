"""Wire types of the registry room: base models, adapters, aliases, revisions and their uploads."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from adapters.base_model_spec import BaseModelSpec, HubName
from adapters.manifest import StoredFile
from core import fields
from core.fields import about

Status = Literal["uploading", "validating", "ready", "rejected"]
NAME: Final = re.compile("^[a-z0-9][a-z0-9-]{0,62}$")
"""Names of adapters and aliases."""

RevisionId = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=fields.ONE_LINE)]
_Weight = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1})]
Weights = Annotated[dict[RevisionId, _Weight], msgspec.Meta(extra_json_schema={"minProperties": 1})]
"""Documented as ``registry/adapters/aliases.py`` checks it, whose refusals name the revision and the fix."""


class NewBaseModel(BaseModelSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spec of a checkpoint, as ``adapters.base_model_spec.describe`` creates it."""


class BaseModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A base model, without its tokenizer and module table. ``names`` are further names, of mirrors and quantized
    copies, that an adapter's config may give.
    """

    id: Annotated[str, fields.ID]
    hub_name: Annotated[str, fields.HUB_NAME]
    names: Annotated[tuple[str, ...], fields.NAMES]
    context_tokens: Annotated[int, fields.CONTEXT_TOKENS]
    vocab_size: Annotated[int, fields.VOCAB_SIZE]
    tokenizer_sha256: Annotated[str, about("SHA-256 of the tokenizer.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class BaseModelNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All further names of a base model; an empty list removes them."""

    names: Annotated[list[HubName], msgspec.Meta(max_length=100), fields.NAMES]


class NewAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new adapter: its name, and its base model: the id, the Hub name, a further name, or the path of a local copy,
    as an adapter's config may have it.
    """

    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": NAME.pattern}), fields.NAME]
    base_model: Annotated[str, fields.BASE_MODEL]


class AdapterView(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter. ``newest_ready`` is the newest ready revision (``revision`` is the same), with its rank and the rank
    class that serves it; all are null without a ready revision. ``serves`` is the revision that calls of the name get:
    that of the alias ``prod``, which the first ready revision sets; null where several share it. After ``prod`` was
    removed the name follows the newest ready revision. A ``pinned`` adapter is kept in replicas' host memory, within
    the plan's limit.
    """

    id: Annotated[str, fields.ID]
    name: Annotated[str, fields.NAME]
    base_model: Annotated[str, fields.BASE_MODEL]
    revision: Annotated[str | None, fields.REVISION]
    newest_ready: Annotated[str | None, about("Newest ready revision; null without one.")]
    serves: Annotated[
        str | None, about("Revision that calls of the bare name get; null where several share the alias prod.")
    ]
    rank: Annotated[int | None, fields.RANK]
    rank_class: Annotated[int | None, fields.RANK_CLASS]
    pinned: Annotated[bool, fields.PINNED]
    created_at: Annotated[datetime, fields.CREATED_AT]


class AdapterPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to an adapter. An omitted field keeps its value."""

    pinned: Annotated[bool | msgspec.UnsetType, fields.PINNED] = msgspec.UNSET


class RankClassView(msgspec.Struct, frozen=True, kw_only=True):
    """One pool of a base model, identified by its largest rank. A slot takes ``slot_bytes`` even when it is empty; this
    memory would hold ``kv_pages_per_slot`` KV pages (null where the size of a page is unknown). The totals cover the
    slots of the live replicas. Replicas serve a class that is not ``registered``, but no revision is placed in it.
    """

    rank: Annotated[int, fields.RANK]
    registered: Annotated[bool, about("Whether revisions are placed in this pool.")]
    slot_bytes: Annotated[int, about("Memory of one slot, in bytes.")]
    kv_pages_per_slot: Annotated[int | None, about("KV pages that one slot's memory would hold; null where unknown.")]
    replicas: Annotated[int, about("Live replicas.")]
    slots: Annotated[int, about("Adapters that one batch can use.")]
    slots_bytes: Annotated[int, about("Memory of all slots, in bytes.")]
    kv_pages_of_slots: Annotated[int | None, about("KV pages that these slots' memory would hold; null where unknown.")]
    adapters: Annotated[int, fields.ADAPTERS]


class AnnouncedFile(StoredFile, frozen=True, kw_only=True):
    """A file that will be uploaded."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=200), fields.PATH]
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50), fields.SIZE_BYTES]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$"), about("SHA-256 in hexadecimal digits.")]


class NewRevision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a new revision. A setting limits their number."""

    files: Annotated[list[AnnouncedFile], msgspec.Meta(min_length=1, max_length=1000), about("Files of the revision.")]


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """How to upload one part of a large file: PUT these bytes to this URL with exactly these headers."""

    number: Annotated[int, fields.NUMBER_IN_ORDER]
    offset_bytes: Annotated[int, about("Where the part begins in its file, in bytes.")]
    size_bytes: Annotated[int, fields.SIZE_BYTES]
    url: Annotated[str, about("Address.")]
    headers: Annotated[dict[str, str], fields.HEADERS]


class UploadView(msgspec.Struct, frozen=True, kw_only=True):
    """How to upload one file: PUT it to ``url`` with exactly these headers. Without a ``url``, PUT each of its
    ``parts`` to the part's URL, in any order and in parallel.
    """

    path: Annotated[str, fields.PATH]
    method: Annotated[str, about("HTTP method of the upload.")]
    size_bytes: Annotated[int, fields.SIZE_BYTES]
    url: Annotated[str | None, about("Where to PUT the file; null for a file in parts.")]
    headers: Annotated[dict[str, str], fields.HEADERS]
    parts: Annotated[list[PartView], about("Parts of a large file, each with its own URL.")]


class RevisionCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A revision and its uploads. The URLs are valid until ``uploads_expire_at``, within two seconds. The list is empty
    after the revision has left the state uploading, or when its URLs are about to expire.
    """

    id: Annotated[str, fields.ID]
    status: Annotated[Status, fields.STATUS]
    uploads: Annotated[list[UploadView], about("How to upload each file; empty when nothing is left to send.")]
    uploads_expire_at: Annotated[datetime, about("Until when the URLs are valid.")]


class ReportView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the review: each problem has code, message, file, where and count. One cause is one problem:
    ``where`` is its first place, ``count`` the number of places. ``canary`` is the result of a replica's
    run: a prompt, the answers of base model and adapter, the largest difference in log-probability (nats), and the time
    to load.
    """

    problems: Annotated[
        list[dict[str, Any]],
        about("Why the revision is rejected: code, message, file, first place and number of places of each cause."),
    ]
    notes: Annotated[list[str], about("Remarks that do not refuse the revision.")]
    canary: Annotated[dict[str, Any] | None, about("Result of a replica's run of the revision; null before it.")] = None


class RevisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A revision. ``sha256`` is the digest of the files that engines load, once it is ready. ``stage`` shows what a
    validating revision waits for: the check of its files, a canary run, and every gateway. ``report`` is present from
    the second stage on, and complete once the revision is decided.
    """

    id: Annotated[str, fields.ID]
    adapter: Annotated[str, fields.ADAPTER]
    status: Annotated[Status, fields.STATUS]
    stage: Annotated[
        Literal["checking", "canary", "publishing"] | None,
        about("What a validating revision waits for: checking, then canary, then publishing to gateways."),
    ]
    rank: Annotated[int | None, fields.RANK]
    rank_class: Annotated[int | None, fields.RANK_CLASS]
    sha256: Annotated[str | None, about("Digest of the files that engines load; null before the revision is ready.")]
    size_bytes: Annotated[int, fields.SIZE_BYTES]
    report: Annotated[ReportView | None, about("Result of the review; null before its second stage.")]
    created_at: Annotated[datetime, fields.CREATED_AT]
    completed_at: Annotated[datetime | None, about("When the upload was completed; null before.")]
    decided_at: Annotated[datetime | None, about("When the revision became ready or was rejected; null before.")]


class AliasTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The target of an alias: one ``revision``, or several by ``weights`` such as ``{"rev_a": 90, "rev_b": 10}``."""

    revision: Annotated[RevisionId | None, fields.REVISION] = None
    weights: Annotated[Weights | None, fields.WEIGHTS] = None


class AliasView(msgspec.Struct, frozen=True, kw_only=True):
    """An alias. ``model`` is the model name in requests to the gateway. ``revision`` is null with several weights."""

    name: Annotated[str, fields.NAME]
    adapter: Annotated[str, fields.ADAPTER]
    model: Annotated[str, fields.MODEL]
    revision: Annotated[str | None, fields.REVISION]
    weights: Annotated[dict[str, int], fields.WEIGHTS]
    updated_at: Annotated[datetime, fields.UPDATED_AT]


class AliasMoved(msgspec.Struct, frozen=True, kw_only=True):
    """An alias after a change."""

    alias: Annotated[AliasView | None, about("The alias after the change; null after its removal.")]
    previous: Annotated[AliasTarget | None, about("Target before the change, as a body that undoes it; null for none.")]
