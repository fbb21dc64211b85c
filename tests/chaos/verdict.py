"""Checks after every fault: witnesses = ledger = usage report = Redis's counters, nothing held, nothing billed twice.

A request that ended cleanly, or that its caller or a time limit ended, is billed exactly the tokens that its engine
emitted, and the prefill that it aborted. A request whose gateway or replica was killed may be billed up to 64 tokens or
one second less, never more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from core import redis_keys
from core.contracts.usage import CHECKPOINT_TOKENS_MAX
from tests.chaos import ledger_check
from tests.chaos.ledger_check import Record, recorded
from tests.chaos.load import CallResult
from tests.chaos.platform import Platform
from tests.chaos.witness_journals import Emitted
from tests.conftest import wait_until

CRASHED = frozenset({"gateway_gone", "replica_gone"})


@dataclass(kw_only=True)
class Verdict:
    """Numbers of requests by result; ``problems`` is empty if every promise was kept.

    ``abandoned_tokens`` come from replicas that the gateway abandoned before their first byte; they are not billed.
    ``ceiling_share`` is the share of its spending ceiling that a tenant spent, if the run had such a tenant.
    """

    requests: int = 0
    exact: int = 0
    estimated: int = 0
    short: int = 0
    tail_tokens: int = 0
    tail_tokens_max: int = 0
    abandoned_tokens: int = 0
    lost: int = 0
    duplicated: int = 0
    ceiling_share: float = 0.0
    problems: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise AssertionError if a promise was broken."""
        assert not self.problems, "; ".join(self.problems[:5])


def emitted(platform: Platform) -> dict[str, dict[str, Emitted]]:
    """Emitted tokens by request id and replica, over all boots of each replica."""
    return platform.witnessed.read({name: one.journal_path for name, one in platform.witnesses.items()})


def quiet(platform: Platform, *, timeout_s: float = 30) -> None:
    """Wait until no reservation is held and no event is on its way to the ledger."""

    def all_recorded() -> bool:
        if not platform.client.exists(redis_keys.USAGE_STREAM):
            return True
        groups = platform.client.xinfo_groups(redis_keys.USAGE_STREAM)
        return bool(groups) and all(group["lag"] == 0 and group["pending"] == 0 for group in groups)

    wait_until(lambda: not ledger_check.held(platform), timeout_s=timeout_s, what="every reservation to end")
    wait_until(all_recorded, timeout_s=timeout_s, what="every event to be in the ledger")


def judge(
    platform: Platform,
    before: frozenset[str] = frozenset(),
    *,
    results: Sequence[CallResult] = (),
    crashed: frozenset[str] = CRASHED,
    tenants: Collection[str] = (),
) -> Verdict:
    """Compare the tokens emitted since ``before`` (request ids known then) with the ledger.

    Also compare the ledger of these tenants and of ``tenants`` with the usage report and Redis's counters, and check
    that all reservations are released. Calls in ``results`` that are complete must be billed exactly. ``crashed`` holds
    the outcomes that may be billed short, or not at all before the first checkpoint. If it is empty, everything must
    be billed to the token.
    """
    quiet(platform)
    witnessed = {name: one for name, one in emitted(platform).items() if name not in before}
    ledger = recorded(platform)
    verdict = Verdict(requests=len(witnessed))
    whole = {one.request_id for one in results if one.end == "done"}
    for request_id, by_replica in witnessed.items():
        _judge_one(verdict, request_id, by_replica, ledger.get(request_id), crashed if request_id not in whole else ())
    for request_id, record in ledger.items():
        if request_id not in before and request_id not in witnessed and record["output_tokens"]:
            verdict.duplicated += 1
            verdict.problems.append(f"{request_id}: billed, but no witness emitted it")
    verdict.problems += [f"{name}: complete at its caller, but never billed" for name in whole - ledger.keys()]
    concerned = {record["tenant_id"] for request_id, record in ledger.items() if request_id not in before}
    verdict.problems += ledger_check.problems(platform, ledger, concerned | set(tenants))
    return verdict


def _judge_one(
    verdict: Verdict,
    request_id: str,
    by_replica: Mapping[str, Emitted],
    record: Record | None,
    crashed: Collection[str],
) -> None:
    billed_by = (
        record["replica_id"] if record is not None else max(by_replica, key=lambda name: by_replica[name].output_tokens)
    )
    one = by_replica.get(billed_by, Emitted())
    verdict.abandoned_tokens += sum(other.output_tokens for name, other in by_replica.items() if name != billed_by)
    if record is None:
        tail = one.output_tokens
        fits = tail <= (CHECKPOINT_TOKENS_MAX if crashed else 0)
        verdict.lost += not fits
    else:
        tail = one.output_tokens - record["output_tokens"]
        allowed = CHECKPOINT_TOKENS_MAX if record["outcome"] in crashed else 0
        prefill = record["aborted_prefill_tokens"]
        fits = 0 <= tail <= allowed and record["input_tokens"] - prefill == one.input_tokens
        # An engine that cannot be reached journals no abort. An end that the platform caused may be free.
        if record["outcome"] == "client_gone" and one.aborted_prefill_tokens:
            fits = fits and prefill == one.aborted_prefill_tokens
        verdict.estimated += bool(record["estimated"])
    verdict.exact += tail == 0
    verdict.short += tail > 0
    verdict.tail_tokens += max(tail, 0)
    verdict.tail_tokens_max = max(verdict.tail_tokens_max, tail)
    if not fits:
        billed = record and {name: record[name] for name in ("replica_id", "outcome", "input_tokens", "output_tokens")}
        verdict.problems.append(f"{request_id}: {dict(by_replica)}, billed {billed}")
