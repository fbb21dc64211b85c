"""Draws the result of ``benchmarks.lora.multilora`` as a chart. It computes no figures."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")  # this backend needs no display

from matplotlib import pyplot as plt

_TIERS = ("slot", "memory", "disk", "store")


def draw_result(result: dict[str, Any], path: Path) -> None:
    """Time to first token and hit rates by number of adapters, one line per kind of trace, as SVG."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in result["traces"]:
        shape = row["trace"]
        kinds.setdefault(f"{shape['popularity']} {shape['skew']}, cv {shape['cv']:g}", []).append(row)
    figure, (times, tiers) = plt.subplots(1, 2, figsize=(11, 4))
    for name, rows in kinds.items():
        counts = [row["trace"]["adapters"] for row in rows]
        (line,) = times.plot(counts, [row["first_token_s"]["p50"] for row in rows], marker="o", label=name)
        times.plot(counts, [row["first_token_s"]["p99"] for row in rows], ls=":", color=line.get_color())
    times.set(xscale="log", yscale="log", xlabel="adapters", ylabel="seconds", title="TTFT: p50, and p99 dotted")
    times.legend(fontsize=8)
    rows = next(iter(kinds.values()))
    counts, bottom = [str(row["trace"]["adapters"]) for row in rows], [0.0] * len(rows)
    for tier in _TIERS:
        shares = [row["hit_rate"][tier] for row in rows]
        tiers.bar(counts, shares, bottom=bottom, label=tier)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    tiers.set(xlabel="adapters", ylabel="share of requests", title=f"Where the adapter lay ({next(iter(kinds))})")
    tiers.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
