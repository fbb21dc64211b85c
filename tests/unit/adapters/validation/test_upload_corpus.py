"""Every bad upload of the corpus through the real confined child: its verdict, its cost and its leftovers."""

import json
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from adapters.base_model_spec import LINEAR_KINDS
from adapters.ingest import check_declared
from adapters.manifest import StoredFile
from adapters.report import ReportBuilder
from adapters.sandbox.child import (
    REQUEST_FILE,
    REVISION_FOLDER,
    UPLOAD_FOLDER,
    ValidationRequest,
    validate_and_normalize,
)
from adapters.settings import UploadSettings
from adapters.validation.bounds import UploadLimits
from adapters.validation.config_rules import check_config
from tests.corpus.uploads.corpus import BY_ID, GOOD
from tests.corpus.uploads.item import BASE, CONFIG, OTHER_BASES, PLAN, Item, good_files
from tests.corpus.uploads.meter import Meter, running_meter
from tests.fixtures.examples import examples
from tests.fixtures.late_import import LateModule
from tests.fixtures.uploads.peft_adapters import adapter_config

vllm_config = LateModule("vllm.config.lora")
lora_model = LateModule("vllm.lora.lora_model")  # imports most of vLLM
peft_helper = LateModule("vllm.lora.peft_helper")

LIMITS = UploadLimits(plan_name="starter", rank_max=PLAN["adapter_rank"], bytes_max=PLAN["adapter_bytes"])
REQUEST = ValidationRequest(
    base=msgspec.structs.replace(BASE, tokenizer_json="", chat_template=""),
    known_bases={
        BASE.id.casefold(): BASE.id,
        BASE.hub_name.casefold(): BASE.id,
        **{each.casefold(): each for each in OTHER_BASES},
    },
    limits=LIMITS,
    bounds=UploadSettings().bounds(),
)
ADDRESS_SPACE_BYTES = 256 << 20  # the smallest allowed value: a quarter of the default
PEAK_BYTES = 128 << 20  # the measuring process counts for 65 MB of it
WALL_S = 10
JUDGED_BY_THE_CHILD = {name: item for name, item in BY_ID.items() if item.is_judged_by_the_child}


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with running_meter() as running:
        yield running


def judge(meter, work, files: dict[str, bytes]):
    """The verdict of the confined child and its cost."""
    write_upload(work, files)
    return meter.judge(work, REQUEST, memory_bytes=ADDRESS_SPACE_BYTES, timeout_s=WALL_S)


def write_upload(work, files: dict[str, bytes]) -> None:
    (work / UPLOAD_FOLDER).mkdir()
    for path, content in files.items():
        (work / UPLOAD_FOLDER / path).write_bytes(content)


def check(item: Item, problems) -> None:
    found = [problem for problem in problems if (problem.code, problem.file) == (item.code, item.file)]
    if item.where is not None:
        found = [problem for problem in found if problem.where == item.where]
    assert found, problems
    message = found[0].message
    assert [words for words in item.says if words not in message] == [], message
    assert message.startswith(item.file or ""), message
    for problem in problems:
        shown = "".join(part for part in (problem.message, problem.where, problem.file) if part)
        assert shown.isprintable(), "as one line"
        assert len(problem.message) < 700, problem.message


@pytest.mark.parametrize("name", JUDGED_BY_THE_CHILD)
def test_a_bad_upload_is_refused_by_name_and_leaves_nothing(name, tmp_path):
    """The child's code in this process."""
    item = BY_ID[name]
    write_upload(tmp_path, item.content())
    (tmp_path / REVISION_FOLDER).mkdir()
    (tmp_path / REQUEST_FILE).write_bytes(msgspec.json.encode(REQUEST))
    verdict = validate_and_normalize(tmp_path)
    check(item, verdict.problems)
    assert not verdict.accepted
    assert verdict.manifest is None
    assert list((tmp_path / REVISION_FOLDER).iterdir()) == []


@pytest.mark.soak  # some two hundred processes
@pytest.mark.parametrize("name", JUDGED_BY_THE_CHILD)
def test_a_bad_upload_is_refused_within_the_limits_and_leaves_nothing(name, meter, tmp_path):
    item = BY_ID[name]
    measured = judge(meter, tmp_path, item.content())
    check(item, measured.verdict.problems)
    assert not measured.verdict.accepted
    assert measured.verdict.manifest is None
    assert list((tmp_path / REVISION_FOLDER).iterdir()) == []
    assert measured.wall_s < WALL_S
    assert measured.cpu_s < item.cpu_s, measured
    assert measured.peak_bytes < PEAK_BYTES, measured


def test_files_that_no_folder_can_hold_are_refused_at_their_announcement():
    announced = {name: item for name, item in BY_ID.items() if item.stage == "announce"}
    assert set(announced) > {name for name in BY_ID if name.startswith("U49")}
    for item in announced.values():
        files = [StoredFile(**file) for file in item.announcement()]
        check(item, check_declared(files, LIMITS).problems)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_upload_is_accepted_within_the_limits_and_vllm_loads_it_in_full_shape(name, meter, tmp_path):
    files = good_files() | GOOD[name]()
    measured = judge(meter, tmp_path, files)
    assert measured.verdict.accepted, measured.verdict
    assert measured.peak_bytes < PEAK_BYTES, measured
    for folder in (UPLOAD_FOLDER, REVISION_FOLDER):
        helper = accept_in_vllm(tmp_path / folder)
    manifest, revision = measured.verdict.manifest, str(tmp_path / REVISION_FOLDER)
    loaded = lora_model.LoRAModel.from_local_checkpoint(
        revision, set(LINEAR_KINDS), helper, lora_model_id=1, device="cpu"
    )
    # vLLM slices its buffers by the shapes in the file, so it would accept smaller weights without an error.
    assert (loaded.rank, 2 * len(loaded.loras)) == (manifest.rank, manifest.tensor_count)
    for module, lora in loaded.loras.items():
        in_features, out_features = BASE.modules[module]
        assert lora.lora_a.shape == (manifest.rank, in_features)
        assert lora.lora_b.shape == (out_features, manifest.rank)


def accept_in_vllm(folder):
    """vLLM's own load-time checks. Raises vLLM's errors."""
    helper = peft_helper.PEFTHelper.from_local_dir(str(folder), max_position_embeddings=2048)
    helper.validate_legal(vllm_config.LoRAConfig(max_lora_rank=PLAN["adapter_rank"]))
    return helper


FIELDS = {
    "r": st.sampled_from([4, 8, 64, 65, 0, -1, 8.0, "8", None, True]),
    "lora_alpha": st.sampled_from([8, 16.5, 0, -1, "16", None, True, [1]]),
    "target_modules": st.sampled_from([["q_proj", "v_proj"], ["q_proj"], [], None, "q_proj", {}]),
    "bias": st.sampled_from(["none", "all", "lora_only", None, "", False, "NONE", []]),
    "modules_to_save": st.sampled_from([None, [], ["lm_head"], ["classifier"], ["score", "x"], "x", False]),
    "use_rslora": st.sampled_from([True, False, None, 0, 1, "yes", []]),
    "use_dora": st.sampled_from([False, True, None, 0, 1, "x", []]),
    "lora_bias": st.sampled_from([False, True, None, 1, "none"]),
    "init_lora_weights": st.sampled_from([True, False, None, "gaussian", "EVA", "pissa", "olora", "", "loftq", 3]),
    "alora_invocation_tokens": st.sampled_from([None, [], [1], 0, "x"]),
    "layer_replication": st.sampled_from([None, [], [[0, 1]], "x", 0]),
    "use_bdlora": st.sampled_from([None, {}, {"a": 1}, True, False]),
    "use_qalora": st.sampled_from([False, True, None, 1]),
    "rank_pattern": st.sampled_from([None, {}, {"q_proj": 8}, {"q_proj": 0}, {"q_proj": "8"}, [], 3, "x", False]),
    "alpha_pattern": st.sampled_from([None, {}, {"q_proj": 8}, {"q_proj": "x"}, [1], 3, False]),
    "vllm_lora_scaling_factor": st.sampled_from([None, 3.0, "x", 0]),
    "vllm_max_position_embeddings": st.sampled_from([None, False, 1]),
}
A_FIELD = st.sampled_from(sorted(FIELDS)).flatmap(lambda field: st.tuples(st.just(field), FIELDS[field]))
CHANGES = st.lists(A_FIELD, min_size=1, max_size=3).map(dict)
ABSENT = st.sets(st.sampled_from(sorted(FIELDS)), max_size=1)


@given(changes=CHANGES, absent=ABSENT)
@examples(600, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_config_that_vllm_refuses_is_refused_here(tmp_path, changes, absent):
    config = {name: value for name, value in (adapter_config(BASE) | changes).items() if name not in absent}
    (tmp_path / CONFIG).write_text(json.dumps(config))
    report = ReportBuilder()
    accepted = check_config(
        json.dumps(config).encode(), BASE, {}, rank_max=LIMITS.rank_max, plan_name="starter", report=report
    )
    # Beside a pattern, r may be the rank of no module. The revision that vLLM loads has the ranks of the tensors.
    if accepted is not None and accepted.rank <= LIMITS.rank_max:
        helper = accept_in_vllm(tmp_path)
        module = "model.layers.0.self_attn.v_proj"  # in no pattern
        assert helper.vllm_lora_scaling_factor == accepted.scaling_of(module, accepted.rank)
