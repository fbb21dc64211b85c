"""Shares the cost of a replica's time out to those who caused it, in whole nanodollars that add up. Pure.

Busy time is shared by predicted step time (``costs.step_model``), a load stall goes to the adapter that caused it, and
everything that belongs to no tenant is a row of its own. No cost is dropped or spread silently: the rows of a slice add
up to rate × time, which ``allocate`` asserts.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Literal

import msgspec

from billing.costs.rates import MS_PER_HOUR
from billing.costs.replica_time import TimeState
from billing.costs.step_model import StepWeights, StepWork, ratio_ppm
from core.money import apportion

CostKind = Literal[
    "requests", "aborted_prefill", "adapter_load", "pinned", "platform", "unclaimed", "idle", "starting", "draining",
    "lost", "provider",
]  # fmt: skip
"""``platform``: probes and canaries. ``unclaimed``: work and stalls that the engine measured and no usage explains.
``provider``: what an outside provider charged, which no replica's hour has.
"""


class CostOwner(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Whose cost a row is. Without a tenant it is the platform's."""

    tenant_id: str = ""
    adapter_id: str = ""
    plan_id: str = ""


PLATFORM = CostOwner()


class OwnerWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the usage of one owner says it did on the replica in the slice. ``prefill_tokens`` are computed prompt
    tokens, without cached ones and without those of aborted prompts. Owners are unique within a slice.
    """

    owner: CostOwner
    prefill_tokens: int = 0
    aborted_prefill_tokens: int = 0
    decode_tokens: int = 0
    context_tokens: int = 0
    sequence_steps: int = 0
    stall_ms: int = 0


class ReplicaSlice(msgspec.Struct, frozen=True, kw_only=True):
    """One replica in one slice of time: its charges by state, what its engine measured, and who used what. ``probes``
    is the part of the work that belongs to the agent's own requests. ``pins`` are the declared charges of pinned slots
    (``costs.rates.slot_charge``).
    """

    charges: Mapping[TimeState, int]
    busy_ms: int = 0
    stall_ms: int = 0
    work: StepWork = StepWork()
    probes: OwnerWork = OwnerWork(owner=PLATFORM)
    owners: Sequence[OwnerWork] = ()
    pins: Mapping[CostOwner, int] = {}


class CostShare(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One row: the cost of one owner for one reason."""

    owner: CostOwner
    kind: CostKind
    nanos: int


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of a slice. ``carry`` is the charge below one nanodollar that the next slice of the replica begins with.
    ``ratio_ppm`` is predicted over measured busy time; None for an idle slice.
    """

    rows: tuple[CostShare, ...]
    carry: int
    ratio_ppm: int | None

    @property
    def total_nanos(self) -> int:
        """The cost of the slice."""
        return sum(row.nanos for row in self.rows)


_Key = tuple[CostOwner, CostKind]


def allocate(given: ReplicaSlice, weights: StepWeights, *, carry: int = 0) -> Allocation:
    """The rows of one slice, by owner and kind. Rows of zero are left out."""
    total, new_carry = divmod(sum(given.charges.values()) + carry, MS_PER_HOUR)
    exact: dict[_Key, Fraction] = {}
    for state in ("starting", "draining", "lost"):
        _add(exact, (PLATFORM, state), Fraction(given.charges.get(state, 0), MS_PER_HOUR))
    pins = _pinned_charges(given)
    idle = given.charges.get("idle", 0) - sum(pins.values())
    for owner, pinned in pins.items():
        _add(exact, (owner, "pinned"), pinned / MS_PER_HOUR)
    _add(exact, (PLATFORM, "idle"), idle / Fraction(MS_PER_HOUR))
    parts, predicted_ps = _busy_parts(given, weights)
    busy, whole = Fraction(given.charges.get("busy", 0), MS_PER_HOUR), sum(parts.values())
    for key, part in parts.items():
        _add(exact, key, busy * part / whole)
    # What the last slice left below one nanodollar joins the largest row, where it changes least.
    if carry:
        largest = max(exact, key=lambda key: (exact[key], key), default=(PLATFORM, "idle"))
        _add(exact, largest, Fraction(carry, MS_PER_HOUR))
    owners = sorted(exact)
    denominator = lcm(*(exact[key].denominator for key in owners))
    shares = apportion([int(exact[key] * denominator) for key in owners], denominator, total)
    nanos = dict(zip(owners, shares, strict=True))
    rows = tuple(
        CostShare(owner=owner, kind=kind, nanos=nanos[owner, kind])
        for owner, kind in sorted(nanos)
        if nanos[owner, kind]
    )
    found = Allocation(rows=rows, carry=new_carry, ratio_ppm=ratio_ppm(predicted_ps, given.busy_ms - given.stall_ms))
    assert found.total_nanos * MS_PER_HOUR + new_carry - carry == sum(given.charges.values()), "rows = rate × time"
    return found


def _add(exact: dict[_Key, Fraction], key: _Key, value: Fraction) -> None:
    if value:
        exact[key] = exact.get(key, Fraction(0)) + value


def _pinned_charges(given: ReplicaSlice) -> dict[CostOwner, Fraction]:
    """Pinned slots at their declared cost. Together they take at most the idle charge, each its part."""
    declared, idle = sum(given.pins.values()), given.charges.get("idle", 0)
    taken = Fraction(min(declared, idle), declared or 1)
    return {owner: charge * taken for owner, charge in given.pins.items() if charge * taken}


def _busy_parts(given: ReplicaSlice, weights: StepWeights) -> tuple[dict[_Key, Fraction], int]:
    """The parts of the busy time, in any common unit, and the predicted picoseconds of all measured work.

    Stalls count with their measured time; the rest of the measured time is shared by predicted step time. The fixed
    part of the steps is shared by sequence-steps, the adapters' part among owners with an adapter. Measured work that
    no usage explains is one more participant.
    """
    stalls = {used.owner: used.stall_ms for used in given.owners if used.stall_ms}
    used_stall_ms = sum(stalls.values())
    stall_ms = min(max(given.stall_ms, used_stall_ms), given.busy_ms)
    steps_ms = given.busy_ms - stall_ms
    predicted = _predicted_parts(given, weights)
    predicted_sum = sum(predicted.values())
    parts: dict[_Key, Fraction] = {}
    for key, part in predicted.items():
        _add(parts, key, part * steps_ms / predicted_sum)
    # Usage may report more stall than the slice measured, when a load crosses its border: then all shrink alike.
    shrink = Fraction(min(stall_ms, used_stall_ms), used_stall_ms) if used_stall_ms else Fraction(0)
    for owner, each in stalls.items():
        _add(parts, (owner, "adapter_load"), each * shrink)
    _add(parts, (PLATFORM, "unclaimed"), Fraction(stall_ms - min(stall_ms, used_stall_ms)))
    if not predicted_sum:
        _add(parts, (PLATFORM, "unclaimed"), Fraction(steps_ms))
    if not parts and given.charges.get("busy", 0):
        parts[PLATFORM, "unclaimed"] = Fraction(1)
    return parts, weights.predict_ps(given.work)


def _predicted_parts(given: ReplicaSlice, weights: StepWeights) -> dict[_Key, Fraction]:
    owners = [*given.owners, given.probes]
    owners.append(_unclaimed(given.work, owners))
    requests: list[CostKind] = ["requests"]
    kinds = [*requests * len(given.owners), "platform", "unclaimed"]
    sequence_steps = sum(used.sequence_steps for used in owners)
    with_adapter = sum(used.sequence_steps for used in owners if used.owner.adapter_id)
    fixed = Fraction(weights.fixed_ps * given.work.steps, sequence_steps or 1)
    adapters = Fraction(weights.adapter_ps * given.work.adapter_steps, with_adapter or 1)
    parts: dict[_Key, Fraction] = {}
    for used, kind in zip(owners, kinds, strict=True):
        part = (
            weights.prefill_token_ps * used.prefill_tokens
            + weights.decode_token_ps * used.decode_tokens
            + weights.context_token_ps * used.context_tokens
            + fixed * used.sequence_steps
            + (adapters * used.sequence_steps if used.owner.adapter_id else 0)
        )
        _add(parts, (used.owner, kind), Fraction(part))
        _add(
            parts,
            (used.owner, "aborted_prefill"),
            Fraction(weights.prefill_token_ps * used.aborted_prefill_tokens),
        )
    return parts


def _unclaimed(work: StepWork, owners: Iterable[OwnerWork]) -> OwnerWork:
    """Measured work beyond what owners used. That may exceed it: a request's tokens are then shared, not created."""
    owners = list(owners)

    def beyond(measured: int, used: Iterable[int]) -> int:
        return max(0, measured - sum(used))

    return OwnerWork(
        owner=PLATFORM,
        prefill_tokens=beyond(
            work.prefill_tokens, (used.prefill_tokens + used.aborted_prefill_tokens for used in owners)
        ),
        decode_tokens=beyond(work.decode_tokens, (used.decode_tokens for used in owners)),
        context_tokens=beyond(work.context_tokens, (used.context_tokens for used in owners)),
        sequence_steps=beyond(work.sequence_steps, (used.sequence_steps for used in owners)),
    )
