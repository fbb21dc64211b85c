"""The weighted draw between the revisions of an alias is in proportion and sticky, and moves few sessions."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from core.rendezvous_hash import weighted_winner
from tests.fixtures.examples import examples

REVISIONS = ["rev_a", "rev_b", "rev_c", "rev_d"]
SESSIONS = [f"session-{number}" for number in range(500)]

weights = st.dictionaries(st.sampled_from(REVISIONS), st.integers(1, 1000), min_size=1)
scopes = st.text(max_size=20)


def chosen(weights: dict[str, int], scope: str = "ad_1:prod") -> dict[str, str]:
    return {session: weighted_winner(f"{scope}\0{session}", weights) for session in SESSIONS}


@given(weights=weights, scope=scopes)
@examples(25)
def test_sessions_are_distributed_by_weight(weights, scope):
    counted = list(chosen(weights, scope).values())
    for revision, weight in weights.items():
        share = weight / sum(weights.values())
        deviation = (share * (1 - share) / len(SESSIONS)) ** 0.5
        # Six standard deviations: a good hash exceeds them once in 500 million times.
        assert abs(counted.count(revision) / len(SESSIONS) - share) <= 6 * deviation


@given(weights=weights, scope=scopes, session=st.text(max_size=50))
def test_a_session_stays_for_any_order_of_the_weights(weights, scope, session):
    backwards = dict(reversed(weights.items()))
    assert weighted_winner(f"{scope}\0{session}", weights) == weighted_winner(f"{scope}\0{session}", backwards)
    assert weighted_winner(f"{scope}\0{session}", weights) in weights


@given(weights=weights, factor=st.integers(2, 9))
@examples(10)
def test_only_the_proportions_of_weights_count(weights, factor):
    assert chosen({name: weight * factor for name, weight in weights.items()}) == chosen(weights)


@given(weights=weights, revision=st.sampled_from(REVISIONS), more=st.integers(1, 1000))
@examples(25)
def test_a_weight_that_grows_only_draws_sessions_to_its_revision(weights, revision, more):
    before, after = chosen(weights), chosen({**weights, revision: weights.get(revision, 0) + more})
    assert {after[session] for session in SESSIONS if before[session] != after[session]} <= {revision}


@given(weights=weights.filter(lambda weights: len(weights) > 1))
@examples(25)
def test_a_removed_revision_moves_only_its_own_sessions(weights):
    gone = min(weights)
    before, after = chosen(weights), chosen({name: weight for name, weight in weights.items() if name != gone})
    assert {before[session] for session in SESSIONS if before[session] != after[session]} == (
        {gone} & set(before.values())
    )


def test_aliases_and_adapters_draw_independently():
    half = {"rev_a": 1, "rev_b": 1}
    base = chosen(half)
    for scope in ("ad_1:canary", "ad_2:prod"):
        other = chosen(half, scope)
        assert 0.4 < sum(base[session] == other[session] for session in SESSIONS) / len(SESSIONS) < 0.6


def test_every_process_makes_the_same_choice():
    code = (
        "from core.rendezvous_hash import weighted_winner\n"
        "print(*(weighted_winner(f'ad_1:prod session-{n}', {'rev_a': 3, 'rev_b': 2}) for n in range(50)))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert other == [weighted_winner(f"ad_1:prod {session}", {"rev_a": 3, "rev_b": 2}) for session in SESSIONS[:50]]
