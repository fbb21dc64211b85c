"""The demo's report on alias moves: each is judged by its own calls, and a move without later calls is not shown."""

from rich.console import Console

from tenora.demo.flip import Flip, Move, Served, show_flip


def move(to: str, sent_at: float, done_at: float, *, acknowledged: bool = True) -> Move:
    return Move(to=to, sent_at=sent_at, done_at=done_at, acknowledged=acknowledged, gateways=1)


def flip(*calls: tuple[float, str], moves: list[Move] | None = None) -> Flip:
    """Calls by when they were sent and the revision that answered; by default to ``new`` in 10..11, back in 20..21."""
    served = [Served(sent_at=sent_at, revision=revision) for sent_at, revision in calls]
    return Flip(served=served, moves=[move("new", 10, 11), move("old", 20, 21)] if moves is None else moves)


FINE = ((5, "old"), (10.5, "old"), (10.6, "new"), (11, "new"), (15, "new"), (20.5, "new"), (22, "old"))


def counts(judged: Flip) -> list[tuple[int, int]]:
    return [(result.calls, result.wrong) for result in judged.results()]


def test_calls_between_a_move_and_its_acknowledgement_may_reach_either_revision():
    assert counts(flip(*FINE)) == [(2, 0), (1, 0)]
    assert flip(*FINE).violations() == []


def test_a_wrong_call_counts_for_the_move_that_it_came_after_and_for_no_other():
    judged = flip(*FINE, (23, "new"), (24, "old"))
    assert counts(judged) == [(2, 0), (3, 1)]
    (violation,) = judged.violations()
    assert "1 of 3 calls after move 2" in violation
    report = judged.as_report()
    assert (report["requests"], report["wrong_after_acknowledgement"]) == (9, 1)
    assert [(each["to"], each["calls_after"], each["wrong"]) for each in report["moves"]] == [
        ("new", 2, 0), ("old", 3, 1),
    ]  # fmt: skip


def test_a_move_without_later_calls_is_not_shown():
    judged = flip(*(call for call in FINE if call[0] < 21))
    assert counts(judged) == [(2, 0), (0, 0)]
    (violation,) = judged.violations()
    assert "no call came after move 2" in violation


def test_no_move_and_one_that_was_not_acknowledged_are_violations():
    assert flip(*FINE, moves=[]).violations() == ["flip: the alias was never moved"]
    (violation,) = flip((2, "new"), moves=[move("new", 0, 1, acknowledged=False)]).violations()
    assert "move 1 was not acknowledged" in violation


def test_each_row_of_the_table_has_its_own_numbers(tmp_path):
    class Shop:
        name, adapter = "Shop", "voice"

    with (tmp_path / "table").open("w") as file:
        show_flip(Console(file=file, width=120), Shop(), flip(*FINE, (23, "new")))
    rows = [line.split() for line in (tmp_path / "table").read_text().splitlines() if line.startswith(("flip", "roll"))]
    assert [row[-2:] for row in rows] == [["2", "0"], ["2", "1"]]
