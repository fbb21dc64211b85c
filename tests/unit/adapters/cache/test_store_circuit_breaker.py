"""When the circuit breaker of S3 opens, and how it closes again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.cache.store_circuit_breaker import StoreCircuitBreaker
from core.errors import Unavailable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def circuit(clock):
    return StoreCircuitBreaker(open_s=1, open_max_s=8, clock=clock)


def is_refused(circuit) -> bool:
    try:
        circuit.admit()
    except Unavailable:
        return True
    return False


def test_three_refused_connections_in_a_row_open_the_circuit(circuit):
    for _ in range(2):
        circuit.failed("a", unreachable=True)
    circuit.succeeded()
    for _ in range(2):
        circuit.failed("a", unreachable=True)
    assert not is_refused(circuit)
    circuit.failed("a", unreachable=True)
    with pytest.raises(Unavailable) as refused:
        circuit.admit()
    assert refused.value.code == "store_unavailable"
    assert refused.value.retry_after_s == 1


def test_failures_of_one_owner_never_open_the_circuit_and_those_of_two_do(circuit):
    for _ in range(50):
        circuit.failed("a", unreachable=False)
    assert not is_refused(circuit)
    circuit.failed("b", unreachable=False)
    assert is_refused(circuit)


def test_after_the_pause_one_successful_probe_closes_the_circuit(circuit, clock):
    for _ in range(3):
        circuit.failed("a", unreachable=True)
    clock.now = 1.1
    assert not is_refused(circuit)
    assert is_refused(circuit), "the probe is under way"
    circuit.succeeded()
    assert not is_refused(circuit)
    assert not circuit.is_open


def test_failed_probes_double_the_pause_up_to_its_maximum(circuit, clock):
    for _ in range(3):
        circuit.failed("a", unreachable=True)
    pauses = []
    for _ in range(6):
        started = clock.now
        while is_refused(circuit):
            clock.now += 0.25
        pauses.append(clock.now - started)
        circuit.failed("a", unreachable=True)
    assert pauses == [1, 2, 4, 8, 8, 8]


def test_a_probe_that_never_reports_is_followed_by_another(circuit, clock):
    for _ in range(3):
        circuit.failed("a", unreachable=True)
    clock.now = 1.1
    assert not is_refused(circuit)
    clock.now = 2.3
    assert not is_refused(circuit)


@given(st.lists(st.tuples(st.sampled_from(["fail", "succeed", "ask"]), st.booleans(), st.floats(0, 5))))
def test_the_circuit_never_stays_open_longer_than_its_maximum(steps):
    clock = Clock()
    circuit = StoreCircuitBreaker(open_s=1, open_max_s=8, clock=clock)
    for what, unreachable, passed_s in steps:
        clock.now += passed_s
        if what == "fail":
            circuit.failed("a" if passed_s < 2 else "b", unreachable=unreachable)
        elif what == "succeed":
            circuit.succeeded()
        else:
            is_refused(circuit)
    clock.now += 8.01
    assert not is_refused(circuit)
