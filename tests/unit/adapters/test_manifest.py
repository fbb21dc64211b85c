"""The manifest and its digest."""

import hashlib

import msgspec
import pytest

from adapters.manifest import AdapterManifest, ManifestDamaged, StoredFile, is_digest, read_manifest

FILES = (
    StoredFile(path="adapter_config.json", size_bytes=2, sha256="a" * 64),
    StoredFile(path="adapter_model.safetensors", size_bytes=3, sha256="b" * 64),
)
MANIFEST = AdapterManifest(
    base_model="tiny", rank=4, alpha=8, use_rslora=False, target_modules=("q_proj",), tensor_count=4, files=FILES
)


def test_the_digest_of_a_manifest_never_changes():
    assert MANIFEST.to_json() == (
        b'{"alpha":8,"base_model":"tiny","files":[{"path":"adapter_config.json","sha256":"'
        + b"a" * 64
        + b'","size_bytes":2},'
        b'{"path":"adapter_model.safetensors","sha256":"' + b"b" * 64 + b'","size_bytes":3}],"rank":4,'
        b'"target_modules":["q_proj"],"tensor_count":4,"use_rslora":false,"version":1}'
    )
    assert MANIFEST.digest == hashlib.sha256(MANIFEST.to_json()).hexdigest()
    assert MANIFEST.size_bytes == 5


def test_bytes_of_another_digest_are_refused():
    assert read_manifest(MANIFEST.to_json(), MANIFEST.digest) == MANIFEST
    with pytest.raises(ManifestDamaged):
        read_manifest(MANIFEST.to_json() + b" ", MANIFEST.digest)


@pytest.mark.parametrize(
    "files", [FILES[:1], FILES[::-1], (FILES[0], StoredFile(path="../x", size_bytes=1, sha256=""))]
)
def test_a_manifest_of_other_files_is_refused_even_with_the_right_digest(files):
    manifest = msgspec.structs.replace(MANIFEST, files=files)
    with pytest.raises(ManifestDamaged, match="other files"):
        read_manifest(manifest.to_json(), manifest.digest)


@pytest.mark.parametrize("text", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 65, "a" * 63 + "\n"])
def test_only_64_hex_digits_are_a_digest(text):
    assert not is_digest(text)
