"""Revisions that were stored before sizes were recorded get the size of their stored files."""

import sqlalchemy as sa

from adapters.object_store.revision_store import revision_prefix
from adapters.settings import UploadSettings
from control_plane.registry.cleanup.stored_sizes import StoredSizes
from control_plane.registry.models import Revision
from control_plane.registry.review.validation_worker import ValidationWorker
from core import db
from tests.fixtures.control_plane.registry_rows import add_revision, impatient
from tests.fixtures.control_plane.worker import upload
from tests.fixtures.uploads.peft_adapters import write_adapter


def test_a_missing_size_is_read_from_the_store_and_a_lost_manifest_stops_no_other(api, base, engine, store, tmp_path):
    tenant = api.tenant()
    tenant.adapter("lost", base)
    lost = add_revision(engine, tenant, "lost")
    write_adapter(tmp_path, base)
    tenant.adapter("bot", base)
    path = upload(tenant, "bot", tmp_path)
    assert ValidationWorker(engine, store, UploadSettings(), impatient(canary_required=False)).run_once()
    with db.unit_of_work(engine) as session:
        row = session.get_one(Revision, path.rpartition("/")[2])
        recorded, digest = row.stored_bytes, row.digest
        session.execute(sa.text("UPDATE revisions SET stored_bytes = NULL"))
    prefix = revision_prefix(digest)
    assert recorded == sum(
        store.bucket.head(prefix + name) for name in ("adapter_config.json", "adapter_model.safetensors")
    )
    sizes = StoredSizes(engine, store, impatient())
    while sizes.run_once():
        pass
    with db.unit_of_work(engine) as session:
        assert session.get_one(Revision, row.id).stored_bytes == recorded
        assert session.get_one(Revision, lost["id"]).stored_bytes is None
        assert session.scalar(sa.text("SELECT stored_bytes FROM stored_revisions")) == recorded
