"""A good adapter, changed at random: every result gets a verdict, and every accepted one can be loaded again."""

import json
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from adapters.manifest import read_manifest
from adapters.report import ValidationReport
from adapters.safetensors_header import HeaderBounds, read_header
from adapters.sandbox.child import (
    REQUEST_FILE,
    REVISION_FOLDER,
    UPLOAD_FOLDER,
    ValidationRequest,
    validate_and_normalize,
)
from adapters.settings import UploadSettings
from adapters.validation.bounds import UploadLimits
from adapters.validation.normalize import REVISION_FILES
from tests.corpus.uploads.item import BASE, CONFIG, Q0, WEIGHTS, good_files, weights_file
from tests.fixtures.examples import examples
from tests.fixtures.late_import import LateModule
from tests.fuzz.same_tensors import assert_same_tensors

vllm_config = LateModule("vllm.config.lora")
peft_helper = LateModule("vllm.lora.peft_helper")
safetensors_torch = LateModule("safetensors.torch")

REQUEST = msgspec.json.encode(
    ValidationRequest(
        base=msgspec.structs.replace(BASE, tokenizer_json="", chat_template=""),
        known_bases={BASE.id.casefold(): BASE.id},
        limits=UploadLimits(plan_name="starter", rank_max=64, bytes_max=1_000_000),
        bounds=UploadSettings().bounds(),
    )
)
GOOD = good_files()
CONFIG_FIELDS = json.loads(GOOD[CONFIG])
HEADER_BYTES = int.from_bytes(GOOD[WEIGHTS][:8], "little")
HEADER = json.loads(GOOD[WEIGHTS][8 : 8 + HEADER_BYTES])
BODY = GOOD[WEIGHTS][8 + HEADER_BYTES :]

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=8), SCALARS, max_size=3)
HARMLESS = st.sampled_from(
    [
        ("lora_dropout", 0.3), ("lora_alpha", 3), ("lora_alpha", 0.25), ("use_rslora", True), ("task_type", None),
        ("target_modules", ["v_proj", "self_attn.q_proj"]), ("inference_mode", False), ("revision", "main"),
        ("layers_to_transform", [0, 1]), ("init_lora_weights", "gaussian"), ("peft_version", "9"),
    ]
)  # fmt: skip
FIELD_CHANGES = st.tuples(st.sampled_from(sorted(CONFIG_FIELDS)) | st.text(max_size=12), VALUES) | HARMLESS
EDITS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4)
OFFSETS = st.lists(st.integers(-1, 5000) | SCALARS, max_size=3)
SHAPES = st.lists(st.integers(-1, 64) | SCALARS, max_size=4)


@pytest.fixture
def work():
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


def judge(work: Path, config: bytes, weights: bytes) -> ValidationReport:
    """The child's code in this process. Accepted adapters are loaded again by the code that loads them in service."""
    for name in (UPLOAD_FOLDER, REVISION_FOLDER):
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).mkdir()
    (work / REQUEST_FILE).write_bytes(REQUEST)
    (work / UPLOAD_FOLDER / CONFIG).write_bytes(config)
    (work / UPLOAD_FOLDER / WEIGHTS).write_bytes(weights)
    verdict = validate_and_normalize(work)
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=ValidationReport) == verdict
    written = {path.name for path in (work / REVISION_FOLDER).iterdir()}
    if verdict.manifest is None:
        assert verdict.problems
        assert written == set()
        for problem in verdict.problems:
            assert problem.message.isprintable()
            assert (problem.file or "") in problem.message
        return verdict
    assert verdict.accepted
    assert written == set(REVISION_FILES)
    load_again(work, verdict)
    return verdict


def load_again(work: Path, verdict: ValidationReport) -> None:
    revision, upload = work / REVISION_FOLDER, work / UPLOAD_FOLDER
    assert read_manifest((revision / "manifest.json").read_bytes(), verdict.digest) == verdict.manifest
    for folder in (upload, revision):
        content = (folder / WEIGHTS).read_bytes()
        assert_same_tensors(content, read_header(folder / WEIGHTS, HeaderBounds(), file=WEIGHTS))
        assert len(safetensors_torch.load(content)) == verdict.manifest.tensor_count
        helper = peft_helper.PEFTHelper.from_local_dir(str(folder), max_position_embeddings=2048)
        assert (helper.r, helper.lora_alpha) == (verdict.manifest.rank, verdict.manifest.alpha)
    # The last is the revision's, which is served. A rank_pattern that matches no module is not written to it.
    helper.validate_legal(vllm_config.LoRAConfig(max_lora_rank=64))


@given(
    changes=st.lists(FIELD_CHANGES, min_size=1, max_size=2),
    gone=st.sets(st.sampled_from(sorted(CONFIG_FIELDS)), max_size=1),
)
@example(changes=[("rank_pattern", {"": 65})], gone=set())
@examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_config_with_other_values(work, changes, gone):
    config = {field: value for field, value in (CONFIG_FIELDS | dict(changes)).items() if field not in gone}
    judge(work, json.dumps(config).encode(), GOOD[WEIGHTS])


@given(tensor=st.sampled_from(sorted(set(HEADER) - {"__metadata__"})), data=st.data())
@examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_header_with_other_entries(work, tensor, data):
    entry = dict(HEADER[tensor])
    field = data.draw(st.sampled_from(["shape", "data_offsets", "dtype", "name", "more", "__metadata__"]))
    header = dict(HEADER)
    if field == "name":
        header[data.draw(st.sampled_from(sorted(HEADER)) | st.text(max_size=30))] = header.pop(tensor)
    elif field == "__metadata__":
        header[field] = data.draw(VALUES)
    else:
        values = {"shape": SHAPES, "data_offsets": OFFSETS, "dtype": st.sampled_from(["F16", "BF16", "I32", "F64"])}
        entry[field] = data.draw(values.get(field, SCALARS) | VALUES)
        header[tensor] = entry
    judge(work, GOOD[CONFIG], weights_file(header, BODY))


@given(edits=EDITS, cut=st.none() | st.integers(0, len(GOOD[WEIGHTS])), where=st.sampled_from(["header", "anywhere"]))
@examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_weights_with_other_bytes(work, edits, cut, where):
    content = bytearray(GOOD[WEIGHTS])
    for position, value in edits:
        content[position % (8 + HEADER_BYTES if where == "header" else len(content))] = value
    judge(work, GOOD[CONFIG], bytes(content[:cut]))


@given(edits=EDITS, cut=st.none() | st.integers(0, len(GOOD[CONFIG])))
@examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_config_with_other_bytes(work, edits, cut):
    content = bytearray(GOOD[CONFIG])
    for position, value in edits:
        content[position % len(content)] = value
    judge(work, bytes(content[:cut]), GOOD[WEIGHTS])


def test_these_tests_meet_both_verdicts(work):
    assert judge(work, GOOD[CONFIG], GOOD[WEIGHTS]).accepted
    header = {name: entry for name, entry in HEADER.items() if name != Q0.format("A")}
    assert not judge(work, GOOD[CONFIG], weights_file(header, BODY)).accepted
