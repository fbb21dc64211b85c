"""Signatures of snapshots, and the hash of a set of entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.newest_published import NewestPublished
from core.snapshot_settings import SnapshotSigningSettings, SnapshotVerifyingSettings
from core.snapshot_signing import ForgedSnapshot, SetHash, SnapshotSigner, SnapshotVerifier, check_digest, read_root
from tests.fixtures.snapshot_keys import PUBLIC_KEYS, SIGNER

ENTRIES = st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=12)


def hash_of(entries: dict[str, bytes]) -> SetHash:
    made = SetHash()
    for field, value in entries.items():
        made.add(field, value)
    return made


@given(ENTRIES, st.randoms())
def test_the_order_of_entries_does_not_change_the_hash(entries, random):
    shuffled = list(entries.items())
    random.shuffle(shuffled)
    assert hash_of(dict(shuffled)).digest == hash_of(entries).digest


@given(ENTRIES, ENTRIES)
def test_different_sets_have_different_hashes(one, other):
    assert (hash_of(one).digest == hash_of(other).digest) == (one == other)


@given(ENTRIES, st.text(max_size=8), st.binary(max_size=8))
def test_a_removed_entry_leaves_no_trace(entries, field, value):
    changed = hash_of(entries)
    changed.add(field, value)
    assert changed.digest != hash_of(entries).digest
    resumed = SetHash(changed.state)
    resumed.remove(field, value)
    assert resumed.state == hash_of(entries).state


def test_a_field_and_its_value_are_kept_apart():
    assert hash_of({"ab": b"c"}).digest != hash_of({"a": b"bc"}).digest


def test_a_signature_holds_for_its_content_its_purpose_and_its_key():
    verifier, signature = SnapshotVerifier(PUBLIC_KEYS), SIGNER.sign("change", b"content")
    verifier.verify("change", b"content", signature)
    for wrong in (
        ("change", b"another", signature), ("root", b"content", signature), ("change", b"content", b""),
        ("change", b"content", SnapshotSigner.new().sign("change", b"content")),
    ):  # fmt: skip
        with pytest.raises(ForgedSnapshot):
            verifier.verify(*wrong)


def test_two_keys_are_accepted_while_the_key_is_rotated():
    new = SnapshotSigner.new()
    verifier = SnapshotVerifier(f"{new.public_key},{PUBLIC_KEYS}")
    for signer in (SIGNER, new):
        verifier.verify("root", b"content", signer.sign("root", b"content"))


@pytest.mark.parametrize(("root", "signature"), [(None, None), (b"{}", None), (b"{}", b"x" * 64)])
def test_a_snapshot_without_a_valid_root_is_refused(root, signature):
    with pytest.raises(ForgedSnapshot):
        read_root(SnapshotVerifier(PUBLIC_KEYS), root, signature)


def test_a_kind_that_the_root_does_not_name_must_be_empty():
    root = b'{"epoch":"e","generation":1,"published_at_ms":1,"digests":{}}'
    read = read_root(SnapshotVerifier(PUBLIC_KEYS), root, SIGNER.sign("root", root))
    check_digest(read, "keys", SetHash())
    with pytest.raises(ForgedSnapshot):
        check_digest(read, "keys", hash_of({"a": b"b"}))


@pytest.mark.parametrize("key", ["", "not base64!", "c2hvcnQ="])
def test_a_key_that_cannot_be_read_is_refused_with_the_command_that_makes_one(key):
    with pytest.raises(ValueError, match="signing-key"):
        SnapshotVerifyingSettings(snapshot_public_keys=key)
    with pytest.raises(ValueError, match="signing-key"):
        SnapshotSigningSettings(snapshot_signing_key=key)


def test_an_older_snapshot_is_refused_after_a_restart_too(tmp_path):
    file = tmp_path / "journal" / "newest-snapshot"
    newest = NewestPublished(file)
    newest.check(5_000)
    newest.advance(5_000)
    newest.check(5_000)
    for known in (newest, NewestPublished(file)):
        with pytest.raises(ForgedSnapshot, match=r"2 s older"):
            known.check(3_000)
    NewestPublished(tmp_path / "another machine").check(3_000)


def test_a_file_that_cannot_be_written_or_read_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("not a number")
    for file in (tmp_path / "file", tmp_path / "file" / "below a file"):
        newest = NewestPublished(file)
        newest.advance(5_000)
        with pytest.raises(ForgedSnapshot):
            newest.check(4_000)
