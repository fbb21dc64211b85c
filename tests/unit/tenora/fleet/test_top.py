"""The rates that `tenora top` shows."""

from tenora.fleet.top import rows


def replica(tokens: int, boot_id: str = "boot_1", **changes) -> dict:
    return {"id": "rep_1", "base_model": "m", "boot_id": boot_id, "counted_tokens": tokens} | changes


def test_tokens_per_second_are_those_between_two_looks_at_one_engine():
    (row,) = rows({"rep_1": replica(100)}, {"rep_1": replica(400)}, seconds=2)
    assert row["tokens_per_s"] == 150


def test_an_engine_that_started_between_the_looks_has_no_rate_yet():
    for before in ({}, {"rep_1": replica(100, boot_id="boot_0")}):
        (row,) = rows(before, {"rep_1": replica(40)}, seconds=2)
        assert row["tokens_per_s"] is None


def test_replicas_are_in_the_order_of_base_models_and_ids():
    now = {name: replica(1, id=name, base_model=model) for name, model in (("b", "x"), ("a", "y"), ("c", "x"))}
    assert [row["id"] for row in rows({}, now, seconds=1)] == ["b", "c", "a"]
