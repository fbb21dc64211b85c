"""What a process counts on replicas: nothing is counted twice, and nothing stays when a request is over."""

from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.placing.replica_load import Load, Shares, Stay


def stay(load: Load, shares: Shares, *, tenant: str = "tn_1", pages: int = 4, adapter: str = "ad_1") -> Stay:
    return Stay(load, shares, tenant_id=tenant, weight=1, pages=pages, prompt_tokens=100, adapter=adapter)


@given(
    st.lists(
        st.tuples(st.sampled_from(["refused", "granted", "unanswered"]), st.booleans(), st.integers(1, 4)), max_size=20
    )
)
def test_when_all_are_over_nothing_is_left(ends):
    load, shares, held = Load(), Shares(), 0
    stays = [stay(load, shares, adapter=f"ad_{n % 3}", tenant=f"tn_{n % 2}") for n in range(len(ends))]
    assert load.taken_pages == 4 * len(ends)
    assert load.requests == len(ends)
    for each, (end, prefilled, granted) in zip(stays, ends, strict=True):
        if end == "granted":
            held += granted
            each.answered(held, granted_pages=granted)
        elif end == "refused":
            each.answered(held, granted_pages=4)
            each.leave()
        if prefilled:
            each.prefilled()
    running = sum(end != "refused" for end, _, _ in ends)
    assert load.requests == running
    assert load.held_pages == held
    for each, (end, _, _) in zip(stays, ends, strict=True):
        if end == "granted":
            each.give_back()
        each.leave()
        each.give_back()  # a second time changes nothing
    assert (load.taken_pages, load.requests, load.prompt_tokens, dict(load.adapters)) == (0, 0, 0, {})
    assert shares.is_below("tn_1", 1, 1, 2, 1)


def test_a_request_that_moves_takes_its_pages_along():
    one, two, shares = Load(), Load(), Shares()
    first, second = stay(one, shares), stay(two, shares)
    first.answered(4, granted_pages=4)
    second.moved_from(first)
    assert (one.taken_pages, two.taken_pages) == (0, 4)
    assert (one.requests, two.requests) == (0, 1)
    second.give_back()
    assert two.taken_pages == 0


def test_a_tenant_is_below_its_share_as_long_as_there_would_be_as_much_for_the_others_and_a_newcomer():
    shares = Shares()
    shares.add("tn_a", 1, 40)
    assert shares.is_below("tn_a", 1, 10, 100, 1)  # half, beside one newcomer
    assert not shares.is_below("tn_a", 1, 11, 100, 1)
    shares.add("tn_b", 1, 4)
    assert not shares.is_below("tn_a", 1, 10, 100, 1)
    assert shares.is_below("tn_b", 1, 29, 100, 1)
    assert not shares.is_below("tn_b", 1, 30, 100, 1)
    assert shares.is_below("tn_b", 2, 45, 100, 1)


def test_behind_several_gateways_a_share_is_that_much_smaller_and_the_first_request_is_always_below():
    shares = Shares()
    assert shares.is_below("tn_a", 1, 100, 100, 8)
    shares.add("tn_a", 1, 10)
    assert shares.is_below("tn_a", 1, 2, 100, 4)
    assert not shares.is_below("tn_a", 1, 3, 100, 4)
