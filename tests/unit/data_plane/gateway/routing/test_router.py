"""The order in which members of a group are tried, what names a group, where a request goes that has no room, and which
member a conversation has under the rule ``classified``, and for how long.
"""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.contracts.routes import GroupMember, GroupRoute
from core.errors import NotFound
from data_plane.gateway.api.model_catalog import describe, describe_one, find_group, members_of
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.routing.router import (
    Router,
    Stickiness,
    by_weight,
    conversation_of,
    is_in_tool_loop,
    led_by,
    route_to,
)
from data_plane.gateway.state.snapshot import Tables
from tests.fixtures.gateway.published import AMPLE, group_route
from tests.fixtures.gateway.requests import inference_request
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.unit.data_plane.gateway.routing.test_classifier import call_of

NAMES = ("small", "middle", "large")
PAIR = group_route("tn_1", "auto", "classified", "small", "large")
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


def tables(*groups: GroupRoute, bases: tuple[str, ...] = NAMES) -> Tables:
    made = Tables()
    made.base_models = {name: tiny_route(name) for name in bases}
    for group in groups:
        made.groups.setdefault(group.tenant_id, {})[group.name] = group
    return made


def group(rule="weighted", *, tenant_id="tn_1", weights=(1, 1, 1), **changes) -> GroupRoute:
    members = tuple(GroupMember(model=name, weight=weight) for name, weight in zip(NAMES, weights, strict=True))
    return replace(group_route(tenant_id, "auto", rule, *NAMES), members=members, **changes)


def names(order) -> list[str]:
    return [target.shown_name for target in order]


def test_a_tenants_group_counts_before_the_platforms_and_its_adapter_before_both():
    own, shared = group(), group(tenant_id="")
    both = tables(own, shared)
    assert find_group(both, "tn_1", "auto") is own
    assert find_group(both, "tn_2", "auto") is shared
    assert find_group(both, "tn_1", "small") is None
    assert find_group(tables(), "tn_1", "auto") is None
    both.adapters["tn_1"] = {"auto": None}
    assert find_group(both, "tn_1", "auto") is None


def test_a_group_without_a_member_that_can_serve_is_as_an_unknown_model_and_is_not_listed():
    own = group()
    assert names(target for _, target in members_of(tables(own, bases=("small", "large")), own, draw="")) == [
        "small", "large",
    ]  # fmt: skip
    empty = tables(own, bases=("other",))
    with pytest.raises(NotFound, match="The model `auto` does not exist") as refused:
        members_of(empty, own, draw="")
    assert refused.value.code == "model_not_found"
    caller = inference_request("tn_1").caller
    assert [entry["id"] for entry in describe(empty, caller)] == ["other"]
    with pytest.raises(NotFound):
        describe_one(empty, caller, "auto")
    (listed, *_) = describe(tables(own), caller)
    assert (listed["id"], listed["members"], listed["owned_by"]) == ("auto", list(NAMES), "tn_1")
    assert describe_one(tables(own), caller, "auto") == listed


def test_a_group_never_reaches_a_model_that_its_caller_could_not_name():
    """Another tenant's adapter in a tenant's group, and a tenant's adapter in a group of the platform, are absent."""
    for owner, of in (("tn_1", "tn_2"), ("", "tn_1")):
        listed = replace(group(tenant_id=owner), members=(GroupMember(model="theirs"), GroupMember(model="large")))
        built = tables(listed)
        theirs = inference_request(of, base_model="large", adapter=f"ad_1@{'d' * 64}").target.adapter
        built.adapters[of] = {"theirs": theirs.route}
        assert names(target for _, target in members_of(built, listed, draw="")) == ["large"]


def test_weights_share_the_sessions_and_a_session_keeps_its_member():
    weighted = group(weights=(8, 1, 1))
    members = members_of(tables(weighted), weighted, draw="")
    chosen = [by_weight(weighted, members, draw=f"session {number}").order[0] for number in range(2_000)]
    counted = Counter(names(chosen))
    assert 1_500 < counted["small"] < 1_700
    assert min(counted["middle"], counted["large"]) > 130
    again = by_weight(weighted, members, draw="session 7")
    assert again.order[0] == chosen[7]
    assert sorted(names(again.order)) == sorted(NAMES)
    heavier = group(weights=(9, 1, 1))
    moved = [by_weight(heavier, members_of(tables(heavier), heavier, draw=""), draw=f"session {number}").order[0]
             for number in range(2_000)]  # fmt: skip
    assert all(new.shown_name == "small" for old, new in zip(chosen, moved, strict=True) if old != new)


@pytest.mark.parametrize(
    ("place", "order"),
    [(0, ["small", "large", "middle"]), (1, ["middle", "large", "small"]), (-1, ["large", "middle", "small"])],
)
def test_after_the_first_member_the_best_come_first(place, order):
    members = members_of(tables(group()), group(), draw="")
    assert names(led_by(members, place, "best").order) == order


@pytest.mark.parametrize(
    ("changes", "rest", "patience_s"),
    [
        ({}, ["middle", "small"], 0.5),
        ({"service_class": "batch"}, [], None),
        ({"limits": replace(AMPLE, tier=0)}, ["middle", "small"], None),
        ({"limits": replace(AMPLE, tier=2)}, ["middle", "small"], 0.5),
    ],
    ids=["ordinary", "batch", "priority", "below"],
)
def test_who_waits_for_the_best_member_and_for_how_long(changes, rest, patience_s):
    overflow = group("overflow", patience_ms=500, priority_tier_max=0)
    choice = led_by(members_of(tables(overflow), overflow, draw=""), -1, "best")
    route = route_to(overflow, choice, 0, inference_request(**changes))
    assert (list(route.rest), route.patience_s, route.reason) == (rest, patience_s, "best")


def test_without_fallback_a_request_has_the_groups_patience_and_nowhere_else_to_go():
    overflow = group("overflow", patience_ms=500, priority_tier_max=-1)
    choice = led_by(members_of(tables(overflow), overflow, draw=""), -1, "best")
    request = inference_request()
    request.call.allow_fallback = False
    route = route_to(overflow, choice, 0, request)
    assert (route.rest, route.patience_s) == ((), 0.5)


def test_the_last_member_has_the_usual_patience_and_only_overflow_has_another():
    overflow = group("overflow")
    choice = led_by(members_of(tables(overflow), overflow, draw=""), -1, "best")
    last = route_to(overflow, choice, 2, inference_request())
    assert (last.rest, last.patience_s, last.reason) == ((), None, "able")
    weighted = group()
    route = route_to(weighted, choice, 0, inference_request())
    assert (list(route.rest), route.patience_s, route.group) == (names(choice.order[1:]), None, weighted)


@pytest.mark.parametrize(
    ("rule", "changes", "rest"),
    [("cascade", {}, ["large"]), ("cascade", {"n": 2}, []), ("weighted", {}, [])],
    ids=["judged", "several choices", "another rule"],
)
def test_a_cascade_goes_on_where_other_rules_do_not(rule, changes, rest):
    """A batch request goes nowhere else when its member is full, but its answer may be replaced."""
    pair, request = replace(PAIR, rule=rule), inference_request(service_class="batch")
    call = call_of("hi", **changes)
    choice = router().choose(tables(pair), pair, request.caller, call, session="s", request_id="req_1")
    assert list(route_to(pair, choice, 0, request).rest) == rest


def test_a_session_has_one_member_of_a_weighted_group():
    pair = replace(PAIR, rule="weighted")
    for session in map(str, range(20)):
        drawn = {
            router().choose(tables(pair), pair, None, call_of("hi"), session=session, request_id=f"req_{number}").order
            for number in range(5)
        }
        assert len(drawn) == 1


def router(**by_text: float) -> Router:
    """A router whose model trusts the small member with these texts so much, and with no other text."""
    model = SimpleNamespace(probability=lambda text: by_text.get(text, 0.0))
    return Router(model, Stickiness(sessions_max=100, idle_s=600))


def chosen(made: Router, call: Call, *, session: str = "", tier: int = 1, **changes) -> tuple[str, str]:
    caller = inference_request(limits=replace(AMPLE, tier=tier)).caller
    group = replace(PAIR, **changes)
    choice = made.choose(tables(group), group, caller, call, session=session, request_id="req_1")
    return choice.order[0].shown_name, choice.reason


def tool_answer(call: Call) -> Call:
    call.messages.append({"role": "assistant", "content": "", "tool_calls": []})
    call.messages.append({"role": "tool", "content": "found", "tool_call_id": "1"})
    return call


@pytest.mark.parametrize(("threshold", "model"), [(60, "small"), (61, "large")])
def test_the_threshold_decides(threshold, model):
    assert chosen(router(easy=0.6), call_of("easy"), threshold_percent=threshold) == (model, "classified")


def test_a_priority_plan_gets_the_better_member():
    assert chosen(router(easy=1.0), call_of("easy"), tier=0) == ("large", "plan")
    assert chosen(router(easy=1.0), call_of("easy"), tier=0, priority_tier_max=-1) == ("small", "classified")


def test_a_session_keeps_its_member_until_a_rule_asks_for_the_better_one():
    made = router(easy=1.0)
    assert chosen(made, call_of("easy"), session="s") == ("small", "classified")
    assert chosen(made, call_of("hard"), session="s") == ("small", "session")
    assert chosen(made, call_of("hard"), session="other") == ("large", "classified")
    assert chosen(made, call_of("hard", tools=TOOLS), session="s") == ("large", "tools")
    assert chosen(made, call_of("easy"), session="s") == ("large", "session")


def test_without_a_session_the_beginning_names_the_conversation():
    made = router(easy=1.0)
    assert chosen(made, call_of("easy")) == ("small", "classified")
    assert chosen(made, call_of("easy", "commit it")) == ("small", "session")
    assert chosen(made, call_of("hard", "commit it")) == ("large", "classified")


def test_a_tool_loop_keeps_its_member_and_its_end_frees_the_session():
    made = router(easy=1.0)
    assert chosen(made, call_of("easy"), session="s") == ("small", "classified")
    assert chosen(made, tool_answer(call_of("hard", tools=TOOLS)), session="s") == ("small", "session")
    assert chosen(made, call_of("hard"), session="s") == ("large", "classified")


def test_a_member_that_is_gone_is_chosen_again():
    made = router(easy=1.0)
    assert chosen(made, call_of("easy"), session="s")[0] == "small"
    others = replace(PAIR, members=(PAIR.members[1], replace(PAIR.members[0], model="middle")))
    assert chosen(made, call_of("hard"), session="s", members=others.members)[1] == "classified"


def test_an_idle_conversation_is_forgotten():
    kept = Stickiness(sessions_max=2, idle_s=10)
    kept.keep("a", "small", 0.0, in_tool_loop=False)
    assert kept.find("a", 10.0, in_tool_loop=False) == "small"
    assert kept.find("a", 10.1, in_tool_loop=False) is None


@given(st.lists(st.sampled_from("abcdef"), max_size=30))
def test_the_conversations_that_were_used_last_are_remembered(used):
    kept = Stickiness(sessions_max=3, idle_s=10)
    for name in used:
        kept.keep(name, name, 0.0, in_tool_loop=False)
    newest = list(dict.fromkeys(reversed(used)))[:3]
    remembered = [name for name in "abcdef" if kept.find(name, 1.0, in_tool_loop=False) == name]
    assert remembered == sorted(newest)


def test_conversations_of_other_tenants_and_groups_are_others():
    call = call_of("hi", "there")
    names = {
        conversation_of(tenant, group, session, each)
        for tenant in ("tn_1", "tn_2")
        for group in ("auto", "ab")
        for session in ("", "s")
        for each in (call, call_of("ho"))
    }
    assert len(names) == 12, "with a session the words do not count"
    assert not is_in_tool_loop(call)
    assert is_in_tool_loop(tool_answer(call))
