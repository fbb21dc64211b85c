"""Which copies the supervisor runs of what is wanted."""

from core.contracts.fleet import WantedPool, WantedRevision
from tenora.stack.local_placer import copies_of


def pool(name: str, **replicas: int) -> WantedPool:
    return WantedPool(
        pool=name,
        revisions=tuple(
            WantedRevision(number=int(key[1:]), replicas=count, environment={"TENORA_POOL": name})
            for key, count in replicas.items()
        ),
    )


def names(*pools: WantedPool, states=None, copies_max=100) -> list[str]:
    return [copy.name for copy in copies_of(pools, states or {}, copies_max=copies_max)]


def test_copies_are_named_by_pool_revision_and_number():
    assert names(pool("b", r1=1), pool("a", r2=1, r1=2)) == ["a-1-1", "a-1-2", "a-2-1", "b-1-1"]
    assert copies_of([pool("a", r1=1)], {}, copies_max=1)[0].environment == {"TENORA_POOL": "a"}
    assert names() == []


def test_with_fewer_those_that_are_ready_stay():
    states = {"a-1-1": "restarting", "a-1-2": "ready", "a-1-3": "ready", "a-b-1-1": "ready", "replica": "ready"}
    assert names(pool("a", r1=2), states=states) == ["a-1-2", "a-1-3"]
    assert names(pool("a", r1=3), states=states) == ["a-1-1", "a-1-2", "a-1-3"]


def test_with_more_the_new_one_has_a_number_that_no_copy_has_not_even_one_that_stops():
    states = {"a-1-1": "ready", "a-1-2": "stopping"}
    assert names(pool("a", r1=2), states=states) == ["a-1-1", "a-1-3"]


def test_a_machine_runs_only_so_many():
    assert names(pool("a", r1=5), pool("b", r1=1), copies_max=3) == ["a-1-1", "a-1-2", "a-1-3"]
