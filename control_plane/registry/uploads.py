"""Where the files of an announced revision go: one presigned URL each. A URL is a secret for as long as it is good, so
none is ever stored; asking again signs anew. Signing is arithmetic and calls nobody.
"""

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from adapters.store import AdapterStore, upload_key
from control_plane.registry.schemas import AnnouncedFile, RevisionCreated, UploadView
from core import clock


def sign(store: AdapterStore, revision_id: str, files: Sequence[AnnouncedFile], *, expires_s: int) -> RevisionCreated:
    """The answer to an announcement, with URLs that are good for ``expires_s`` from now."""
    signed = []
    for file in files:
        upload = store.presign_put(
            upload_key(revision_id, file.path), size_bytes=file.size_bytes, sha256=file.sha256, expires_s=expires_s
        )
        signed.append(UploadView(path=file.path, method=upload.method, url=upload.url, headers=upload.headers))
    expire_at = clock.now() + timedelta(seconds=expires_s)
    return RevisionCreated(id=revision_id, status="uploading", uploads=signed, uploads_expire_at=expire_at)


def unsigned(created: RevisionCreated) -> RevisionCreated:
    """What is stored of that answer for an Idempotency-Key."""
    return msgspec.structs.replace(created, uploads=[])


def revision_of(stored: bytes) -> str:
    """The id of the revision in a stored answer."""
    return msgspec.json.decode(stored, type=RevisionCreated).id
