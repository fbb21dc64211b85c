"""Computes the results of ``benchmarks.lora.multilora``: one summary per trace, and each goal with its figure. Pure."""

import statistics
from collections import defaultdict
from dataclasses import asdict
from typing import Any, Final

from benchmarks.load import quantile
from benchmarks.lora.replica import Served
from benchmarks.trace import TENANTS, TraceShape, jain

GOALS: Final = {
    "throughput at the most adapters / at 5": 0.90,
    "TTFT p50 at twice the slots / at the slots": 3.0,
    "TTFT p99 of an adapter only in S3, s": 1.5,
}


def summary(shape: TraceShape, served: list[Served], stalls_ms: list[float], seconds: float) -> dict[str, Any]:
    """The summary of one trace. ``stalls_ms`` are the adapter loads that stalled a step during the trace."""
    by_tier: dict[str, list[float]] = defaultdict(list)
    attained: dict[int, list[bool]] = defaultdict(list)
    seen: set[int] = set()
    for each in served:
        first = each.arrival.adapter not in seen
        seen.add(each.arrival.adapter)
        by_tier[each.tier if first or each.tier != "slot" else "slot, again"].append(each.answer.first_token_s)
        attained[each.arrival.adapter % TENANTS].append(each.answer.first_token_s <= 1.0)
    all_first = [each.answer.first_token_s for each in served]
    return {
        "trace": asdict(shape),
        "requests": len(served),
        "adapters_asked_for": len(seen),
        "tokens_per_s": round(sum(each.answer.output_tokens for each in served) / seconds, 1),
        "first_token_s": {"p50": round(quantile(all_first, 0.5), 4), "p99": round(quantile(all_first, 0.99), 4)},
        "first_token_s_by_tier": {
            tier: {
                "requests": len(times),
                "p50": round(quantile(times, 0.5), 4),
                "p99": round(quantile(times, 0.99), 4),
            }
            for tier, times in sorted(by_tier.items())
        },
        "hit_rate": {
            tier: round(sum(each.tier == tier for each in served) / len(served), 4)
            for tier in ("slot", "memory", "disk", "store")
        },
        "stall": {
            "loads_in_step": len(stalls_ms),
            "ms_p50": round(quantile(stalls_ms, 0.5), 2),
            "ms_p99": round(quantile(stalls_ms, 0.99), 2),
            "share_of_time": round(sum(stalls_ms) / 1000 / seconds, 4),
        },
        "jain_of_tenants_within_1_s": round(jain([statistics.fmean(each) for each in attained.values()]), 4),
        "sent_late_p99_s": round(quantile([each.late_s for each in served], 0.99), 4),
    }


def judged(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each goal with the measured value."""
    rounds = {row["adapters"]: row["rounds"] for row in result["saturated"]}
    # Each ratio is of two loads that ran close together in time.
    ratios = [most / five for most, five in zip(rounds[max(rounds)], rounds[5], strict=True)]
    at_slots, at_twice = (row["p50_s"] for row in result["cliff"])
    seen = {
        "throughput at the most adapters / at 5": round(statistics.median(ratios), 3),
        "TTFT p50 at twice the slots / at the slots": round(at_twice / at_slots, 3),
        "TTFT p99 of an adapter only in S3, s": result["store_first_hit"]["p99_s"],
    }
    return {
        goal: {"seen": seen[goal], "goal": bound, "met": seen[goal] >= bound if bound < 1 else seen[goal] <= bound}
        for goal, bound in GOALS.items()
    }
