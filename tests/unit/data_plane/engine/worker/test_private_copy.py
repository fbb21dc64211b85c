"""A load reads exactly the bytes of its digest or none, and leaves no files behind."""

import pytest

from adapters.manifest import MANIFEST_FILE, WEIGHTS_FILE, ManifestDamaged
from data_plane.engine.worker.private_copy import private_copy
from tests.fixtures.uploads.stored_revisions import make_revision


@pytest.fixture
def revision(tmp_path):
    manifest, files = make_revision(3 << 20)
    folder = tmp_path / manifest.digest
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return manifest, folder


def test_the_copy_is_complete_independent_and_deleted_afterwards(revision, tmp_path):
    manifest, folder = revision
    with private_copy(folder, manifest.digest, tmp_path / "run") as copy:
        original = (folder / WEIGHTS_FILE).read_bytes()
        (folder / WEIGHTS_FILE).write_bytes(b"")
        assert (copy / WEIGHTS_FILE).read_bytes() == original
    assert list((tmp_path / "run").iterdir()) == []


def flip_a_bit(folder):
    content = bytearray((folder / WEIGHTS_FILE).read_bytes())
    content[1000] ^= 1
    (folder / WEIGHTS_FILE).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (flip_a_bit, ManifestDamaged),
        (lambda folder: (folder / WEIGHTS_FILE).write_bytes(b"x"), ManifestDamaged),
        (lambda folder: (folder / WEIGHTS_FILE).write_bytes(b"x" * (5 << 20)), ManifestDamaged),
        (lambda folder: (folder / WEIGHTS_FILE).unlink(), FileNotFoundError),
        (lambda folder: (folder / MANIFEST_FILE).write_bytes(b"{}"), ManifestDamaged),
        (lambda folder: (folder / MANIFEST_FILE).unlink(), FileNotFoundError),
    ],
    ids=["bit", "truncated", "longer", "no weights", "manifest", "no manifest"],
)
def test_any_damage_is_an_error_and_leaves_nothing(revision, tmp_path, damage, error):
    manifest, folder = revision
    damage(folder)
    with pytest.raises(error), private_copy(folder, manifest.digest, tmp_path / "run"):
        pytest.fail("a damaged adapter was handed out")
    assert list((tmp_path / "run").glob("*")) == []
