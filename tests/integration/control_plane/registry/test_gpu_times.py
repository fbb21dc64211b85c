"""Gateways learn the GPU time of a token: measured times reach the published base model."""

from types import SimpleNamespace

import msgspec
import pytest
import sqlalchemy as sa

from billing.costs.models import ReplicaCostWindow
from control_plane.publishing.models import OutboxChange
from control_plane.registry import base_models, gpu_times
from core import db
from core.contracts.costs import CostWindow
from core.contracts.routes import GpuTime
from tests.fixtures.uploads.peft_adapters import tiny_base


@pytest.fixture
def engine(postgres_settings):
    engine = db.connect(postgres_settings)
    yield engine
    engine.dispose()


def measure(engine, base_model: str, *, busy_ms: int) -> None:
    """A window of now: 600 prompt and 200 generated tokens."""
    with db.unit_of_work(engine) as session:
        now_ms = int(session.connection().execute(sa.text("SELECT extract(epoch FROM now()) * 1000")).scalar_one())
        window = CostWindow(
            replica_id="rep_1", boot_id=f"boot_{busy_ms}", sequence=1, base_model=base_model, rank_max=16, engine="e",
            device="cpu", state="ready", start_ms=now_ms - 10_000, end_ms=now_ms, busy_ms=busy_ms, steps=5,
            prefill_tokens=600, decode_tokens=200,
        )  # fmt: skip
        session.add(ReplicaCostWindow(**msgspec.structs.asdict(window)))


def published(engine, base_model: str) -> tuple[GpuTime, int]:
    """What gateways would be sent, and how often this waits."""
    with db.unit_of_work(engine) as session:
        waiting = sa.select(sa.func.count()).where(sa.column("kind") == "base_models", sa.column("field") == base_model)
        count = session.connection().execute(waiting.select_from(OutboxChange.__table__)).scalar_one()
        route, _ = base_models.route(session, base_model)
        return route.gpu_time, count


def test_measured_times_are_published_once_and_again_when_they_differ_much(api, engine):
    spec = tiny_base()
    api.register(spec)
    before = published(engine, spec.id)[1]
    assert published(engine, spec.id)[0] == GpuTime()
    measure(engine, spec.id, busy_ms=2_000)
    for _ in range(2):
        assert gpu_times.publish_gpu_times(engine) is False
        assert published(engine, spec.id) == (GpuTime(input_token_us=2_000, output_token_us=4_000), before + 1)
    measure(engine, spec.id, busy_ms=2_080)  # 2 % more in all
    gpu_times.publish_gpu_times(engine)
    assert published(engine, spec.id)[1] == before + 1


@pytest.mark.parametrize(
    ("input_us", "output_us", "differs"), [(104, 104, False), (106, 100, True), (100, 106, True), (94, 100, True)]
)
def test_either_time_may_be_the_one_that_differs(input_us, output_us, differs):
    row = SimpleNamespace(input_token_us=100, output_token_us=100)
    assert gpu_times._differs(row, GpuTime(input_token_us=input_us, output_token_us=output_us)) is differs
