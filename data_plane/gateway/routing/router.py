"""In which order the members of a group are tried for a request, and why: by the group's rule, and by what this process
remembers of conversations.

A member that cannot serve the request, such as one whose context is too small, is passed over by
request/preparation.py. Where one has no room in time, request/lifecycle.py goes on with ``Route.rest``.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from core.contracts.routes import GroupMember, GroupRoute
from core.rendezvous_hash import weighted_winner
from data_plane.gateway.api.inference_request import InferenceRequest, Route
from data_plane.gateway.api.model_catalog import Target, members_of
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.routing.classifier import LinearModel, reason_for_better, words_of
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.snapshot import Tables

REASON_AFTER: Final = {
    "overloaded": "overflow", "no_replica": "failed", "no_pool_serves": "able", "request_exceeds_replica": "able",
}  # fmt: skip
"""Codes of admission's refusals after which the next member is asked, and the reason that is shown then."""

_BEGINNING_CHARS: Final = 4_096  # of each message

Members = Sequence[tuple[GroupMember, Target]]


class Choice(NamedTuple):
    """The members in the order to try, and why the first of them is the first."""

    order: tuple[Target, ...]
    reason: str


class _Kept(NamedTuple):
    model: str
    used_at: float
    in_tool_loop: bool


class Stickiness:
    """Which member a conversation has, until it was idle for a while or its tool loop ends. Another member in the
    middle of a conversation loses its prefix cache, and in the middle of a tool loop the thread.

    At most ``sessions_max`` conversations of all tenants, of which the longest unused is dropped first: a tenant with
    very many lets those of others be judged again. Times are monotonic.
    """

    def __init__(self, *, sessions_max: int, idle_s: float) -> None:
        self._sessions_max = sessions_max
        self._idle_s = idle_s
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def find(self, conversation: str, now: float, *, in_tool_loop: bool) -> str | None:
        """The member of a conversation; None for an unknown or idle one, and after the end of its tool loop."""
        kept = self._kept.get(conversation)
        if kept is None or now - kept.used_at > self._idle_s or (kept.in_tool_loop and not in_tool_loop):
            return None
        return kept.model

    def keep(self, conversation: str, model: str, now: float, *, in_tool_loop: bool) -> None:
        """A conversation has this member from now on."""
        self._kept[conversation] = _Kept(model, now, in_tool_loop)
        self._kept.move_to_end(conversation)
        if len(self._kept) > self._sessions_max:
            self._kept.popitem(last=False)


class Router:
    """The rules of groups, with what this process remembers of conversations."""

    def __init__(self, model: LinearModel, conversations: Stickiness) -> None:
        self._model = model
        self._conversations = conversations

    def choose(
        self, tables: Tables, group: GroupRoute, caller: Caller, call: Call, *, session: str, request_id: str
    ) -> Choice:
        """The members to try. ``session`` is the caller's, or "". Raises NotFound where no member can serve it."""
        draw = session or request_id
        members = members_of(tables, group, draw=draw)
        if len(members) == 1:
            return led_by(members, 0, "only_member")
        if group.rule == "weighted":
            return by_weight(group, members, draw=draw)
        if group.rule == "cascade" and call.kind == "chat" and call.n == 1:
            return led_by(members, 0, "first")
        if group.rule in ("cascade", "overflow"):
            return led_by(members, -1, "best")
        return self._classified(group, members, caller, call, session)

    def _classified(self, group: GroupRoute, members: Members, caller: Caller, call: Call, session: str) -> Choice:
        """The member that the conversation has, else the first where it should suffice, else the last. A conversation
        moves to the last one as soon as a rule asks for it, but not in the middle of a tool loop.
        """
        conversation, now = conversation_of(caller.tenant.tenant_id, group.name, session, call), time.monotonic()
        looping, names = is_in_tool_loop(call), [target.shown_name for _, target in members]
        kept = self._conversations.find(conversation, now, in_tool_loop=looping)
        better = reason_for_better(call, is_priority=caller.limits.tier <= group.priority_tier_max)
        place, reason = len(names) - 1, str(better or "classified")
        if kept in names and (looping or better is None):
            place, reason = names.index(kept), "session"
        elif better is None and self._model.probability(words_of(call)) * 100 >= group.threshold_percent:
            place = 0
        if conversation:
            self._conversations.keep(conversation, names[place], now, in_tool_loop=looping)
        return led_by(members, place, reason)


def led_by(members: Members, place: int, reason: str) -> Choice:
    """The member at this place, then the others, the best of them first."""
    targets = [target for _, target in members]
    first = targets.pop(place)
    return Choice((first, *reversed(targets)), reason)


def by_weight(group: GroupRoute, members: Members, *, draw: str) -> Choice:
    """A member by its weight. The same draw gives the same member, at every gateway, while the weights stay."""
    weights = {member.model: member.weight for member, _ in members}
    chosen = weighted_winner(f"{group.tenant_id}/{group.name}\0{draw}", weights)
    return led_by(members, list(weights).index(chosen), "weight")


def route_to(group: GroupRoute, choice: Choice, place: int, request: InferenceRequest) -> Route:
    """The route to a member in the order, and to those after it. A cascade goes from its first member to the last.
    Under the rule ``overflow`` the route says how long the request waits. Batch requests and those of priority plans
    wait as they do without a group; a batch request, and one that allows no fallback, goes nowhere else.
    """
    rest: tuple[str, ...] = ()
    patience_s: float | None = None
    may_move = request.call.allow_fallback and not request.is_batch
    if may_move or group.may_replace(choice.order[place].shown_name):
        rest = tuple(target.shown_name for target in choice.order[place + 1 :])
    if group.rule == "overflow" and not request.is_batch:
        waits = request.limits.tier <= group.priority_tier_max or (may_move and not rest)
        patience_s = None if waits else group.patience_ms / 1000
    return Route(group=group, reason="able" if place else choice.reason, rest=rest, patience_s=patience_s)


def is_in_tool_loop(call: Call) -> bool:
    """Whether the request answers a call of a tool."""
    return bool(call.messages and call.messages[-1]["role"] == "tool")


def conversation_of(tenant_id: str, group: str, session: str, call: Call) -> str:
    """The name of a conversation: the caller's session, else what all its turns begin with, up to the first message of
    the user. "" for a completion without a session.
    """
    if session:
        return f"{tenant_id}\0{group}\0{session}"
    if call.messages is None:
        return ""
    beginning = hashlib.blake2b(digest_size=12)
    for message in call.messages:
        beginning.update(message["content"][:_BEGINNING_CHARS].encode() + b"\0")
        if message["role"] == "user":
            break
    return f"{tenant_id}\0{group}\0\0{beginning.hexdigest()}"
