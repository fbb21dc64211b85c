"""The programs of several replicas, and the cores that each is bound to."""

import pytest

from tenora.stack.definition import cores_of, replica_names


def test_the_first_replica_keeps_its_name():
    assert replica_names(1) == ["replica"]
    assert replica_names(3) == ["replica", "replica-2", "replica-3"]


@pytest.mark.parametrize(
    ("cores", "replicas", "shares"),
    [
        ([0, 1], 2, ["0", "1"]),
        ([4, 5, 6, 7], 2, ["4,5", "6,7"]),
        ([0, 1, 2], 2, ["0", "1"]),
        ([0, 1], 3, ["0", "1", "0"]),
    ],
)
def test_each_replica_has_an_equal_share_of_the_cores_or_one_core_in_turn(cores, replicas, shares):
    assert [cores_of(number, replicas, cores) for number in range(replicas)] == shares
