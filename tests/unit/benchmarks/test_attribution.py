"""The arithmetic of the comparison with the Shapley value, without an engine."""

from benchmarks.attribution import WORKLOADS, attributed, shapley
from billing.costs.step_model import Observation, StepWeights, StepWork


def test_the_shapley_values_add_up_to_the_time_together():
    assert shapley([600, 300], 800) == (550, 250)


def test_the_whole_joint_run_is_attributed_when_the_tenants_did_all_the_work():
    owners = [each.used for each in WORKLOADS]
    work = StepWork(
        steps=100,
        prefill_tokens=sum(claim.prefill_tokens for claim in owners),
        decode_tokens=sum(claim.decode_tokens for claim in owners),
        context_tokens=sum(claim.context_tokens for claim in owners),
        sequence_steps=sum(claim.sequence_steps for claim in owners),
    )
    weights = StepWeights(fixed_ps=5, prefill_token_ps=3, decode_token_ps=2, context_token_ps=1)
    shares = attributed(Observation(work=work, busy_ms=1_000), WORKLOADS, weights)
    assert sum(shares) == 1_000
    assert all(share > 0 for share in shares)
