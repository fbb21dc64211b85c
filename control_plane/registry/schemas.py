"""Wire types of the registry room: base models, adapters, revisions and what their files must look like."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from adapters.base_model import BaseModelSpec

Status = Literal["uploading", "validating", "ready", "rejected"]


class NewBaseModel(BaseModelSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spec that ``adapters.base_model.describe`` makes of a checkpoint, as JSON."""


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
    """An adapter. ``revision`` is the newest ready one, which ``model="<name>"`` means; null until there is one."""

    id: str
    name: str
    base_model: str
    revision: str | None
    created_at: datetime


class AnnouncedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file about to be uploaded."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    size_bytes: Annotated[int, msgspec.Meta(gt=0, le=1 << 50)]
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
    """What validation said: each problem has code, message, file and where."""

    problems: list[dict[str, Any]]
    notes: list[str]


class RevisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A revision. ``sha256`` is the digest of what engines load, once ready; ``report`` is there once decided."""

    id: str
    adapter: str
    status: Status
    sha256: str | None
    size_bytes: int
    report: ReportView | None
    created_at: datetime
    completed_at: datetime | None
    decided_at: datetime | None
