"""Where the files of an announced revision go: one presigned URL each. A URL is a secret for as long as it is good, so
none is ever stored; asking again signs anew, and none outlives the revision's announcement by more than one lifetime:
``cleanup`` counts on it. Signing is arithmetic and calls nobody.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from adapters.upload_store import UploadStore, upload_key
from control_plane.registry.schemas import AnnouncedFile, RevisionCreated, RevisionView, UploadView
from core import clock

URL_USEFUL_S: Final = 60
"""A URL that is good for less than this is not given out."""


def sign(
    store: UploadStore, revision: RevisionView, files: Sequence[AnnouncedFile], *, lifetime_s: int
) -> RevisionCreated:
    """The answer to an announcement, now or replayed: the revision's status, and URLs while it waits for its files.

    Every URL expires within ``lifetime_s`` of the announcement, whenever it is signed.
    """
    expire_at = revision.created_at + timedelta(seconds=lifetime_s)
    # One second less: a signature's instant is a whole second, and signing takes a moment.
    expires_s = int((expire_at - clock.now()).total_seconds()) - 1
    if revision.status != "uploading" or expires_s < URL_USEFUL_S:
        return RevisionCreated(id=revision.id, status=revision.status, uploads=[], uploads_expire_at=expire_at)
    signed = []
    for file in files:
        upload = store.presign_put(
            upload_key(revision.id, file.path), size_bytes=file.size_bytes, sha256=file.sha256, expires_s=expires_s
        )
        signed.append(UploadView(path=file.path, method=upload.method, url=upload.url, headers=upload.headers))
    return RevisionCreated(id=revision.id, status=revision.status, uploads=signed, uploads_expire_at=expire_at)


def unsigned(created: RevisionCreated) -> RevisionCreated:
    """What is stored of that answer for an Idempotency-Key."""
    return msgspec.structs.replace(created, uploads=[])


def revision_of(stored: bytes) -> str:
    """The id of the revision in a stored answer."""
    return msgspec.json.decode(stored, type=RevisionCreated).id
