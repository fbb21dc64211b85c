"""What `tenora status` says about replicas."""

from tenora.stack.status import replica_lines


def test_only_replicas_with_a_reason_get_a_line_that_says_it():
    ready = {"id": "rep_1", "state": "ready", "reason": ""}
    waiting = {"id": "rep_2", "state": "starting", "reason": "the object store has no bucket 'tenora'"}
    assert replica_lines({"replicas": [ready, waiting]}) == [
        "replica rep_2 is starting: the object store has no bucket 'tenora'"
    ]
