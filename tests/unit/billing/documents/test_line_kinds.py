"""What lines are called on documents and at Stripe."""

from typing import get_args

from billing.charges.lines import LINE_KINDS_IN_WORDS, LineKind


def test_every_kind_of_line_has_words():
    kinds = {kind for part in get_args(LineKind) for kind in (get_args(part) or (part,))}
    assert set(LINE_KINDS_IN_WORDS) == kinds
