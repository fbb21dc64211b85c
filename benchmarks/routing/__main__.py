"""Draws cost against quality of a group's rules on the labelled prompts beside always small, always large, a random mix
and length alone, and picks the threshold of the rule ``classified`` on prompts that its model was not trained on.

The labels are their author's judgement, made without looking at any model's answers: figures from them say whether a
rule reads what the author meant, and not how a given pair of models answers. A cascade is drawn for a small model that
answers the prompts now (``--gateway``). The rules ``weighted`` (a random mix) and ``overflow`` (load decides) do not
read the prompt.

Run: ``python -m benchmarks.routing``; ``python -m benchmarks.routing train`` writes the gateway's weights. Exits with
status 1 when a goal is missed.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.load import quantile
from benchmarks.routing.curves import Scored, curve, folds, pick, point, random_mix
from benchmarks.routing.sureness import sureness
from benchmarks.routing.training import Prompt, read_prompts, stored, train
from data_plane.gateway.routing.classifier import WEIGHTS, features

FOLDS: Final = 5
DECISION_MS_MAX: Final = 2.0
Score = Callable[[str], float]
Fit = Callable[[Sequence[Prompt]], Score]
"""Learns a score from prompts: how much a text is trusted to the smaller member."""


def classified(prompts: Sequence[Prompt]) -> Score:
    """The gateway's model."""
    return train(prompts).probability


def length_alone(_prompts: Sequence[Prompt]) -> Score:
    """Short prompts to the smaller member."""
    return lambda text: -float(len(text))


def scored(score: Score, prompts: Sequence[Prompt]) -> list[Scored]:
    """The prompts as a rule sees them."""
    return [Scored(score(prompt.text), prompt.small_suffices) for prompt in prompts]


def held_out(
    prompts: Sequence[Prompt], fit: Fit, quality: float, ratio: float, *, both: bool = False
) -> dict[str, Any]:
    """A rule's curve, each prompt scored by a model that has not seen it, and what thresholds that were picked on other
    prompts cost and gave.
    """
    everything: list[Scored] = []
    thresholds, costs, qualities = [], [], []
    for trained, picked, tested in folds(len(prompts), FOLDS):
        score = fit([prompts[place] for place in trained])
        threshold = pick(scored(score, [prompts[place] for place in picked]), quality, ratio, both=both)
        found = scored(score, [prompts[place] for place in tested])
        reached = point(found, threshold, ratio, both=both)
        everything += found
        thresholds.append(threshold)
        costs.append(reached.cost)
        qualities.append(reached.quality)
    return {
        "threshold": statistics.median(thresholds),
        "cost": statistics.mean(costs),
        "quality": statistics.mean(qualities),
        "curve": [(each.cost, each.quality) for each in curve(everything, ratio, both=both)],
    }


def rows_of(
    prompts: Sequence[Prompt], quality: float, ratio: float, sure: dict[str, float] | None = None
) -> dict[str, dict[str, Any]]:
    """The table, by rule. A cascade needs how ``sure`` a small model was of its answer to each prompt."""
    plain = scored(lambda _text: 0.0, prompts)
    small = sum(prompt.small_suffices for prompt in prompts) / len(prompts)
    rows: dict[str, dict[str, Any]] = {
        "always small": {"threshold": None, "cost": ratio, "quality": small},
        "always large": {"threshold": None, "cost": 1.0, "quality": 1.0},
    }
    fits: dict[str, Fit] = {"length alone": length_alone, "classified": classified}
    if sure is not None:
        fits["cascade"] = lambda _prompts: sure.__getitem__
    for name, fit in fits.items():
        rows[name] = held_out(prompts, fit, quality, ratio, both=name == "cascade")
        rows[name]["random_mix_cost"] = random_mix(plain, rows[name]["quality"], ratio)
    return rows


def decision_ms(prompts: Sequence[Prompt]) -> float:
    """The 99th percentile of the processor time of a decision, for texts as long as features read them."""
    model, times = train(prompts[:50]), []
    for prompt in prompts:
        text = (prompt.text + " ") * (4_000 // len(prompt.text) + 1)
        began = time.thread_time()
        model.of(features(text[:4_000]))
        times.append((time.thread_time() - began) * 1000)
    return quantile(times, 0.99)


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """The curves, the line of random mixes, and the points that were reached."""
    import matplotlib as mpl  # late: only the chart needs it

    mpl.use("svg")  # this backend needs no display
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    ends = [rows["always small"], rows["always large"]]
    axes.plot([each["cost"] for each in ends], [each["quality"] for each in ends], "k:", label="random mix")
    for name, row in rows.items():
        if "curve" in row:
            axes.step(*zip(*row["curve"], strict=True), where="post", label=name)
        axes.plot(row["cost"], row["quality"], "o", label=f"{name}, as picked" if "curve" in row else name)
    axes.set(xlabel="cost, to always large", ylabel="share of prompts whose member suffices")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


@click.group(invoke_without_command=True)
@click.option("--quality", default=0.95, show_default=True, type=click.FloatRange(0, 1), help="Quality to pick for.")
@click.option(
    "--ratio", default=0.1, show_default=True, type=click.FloatRange(0, 1), help="Cost of the smaller member."
)
@click.option("--gateway", help="URL of a gateway; with --model and --key it adds the rule cascade.")
@click.option("--model", default="", help="The smaller model there.")
@click.option("--key", default="", help="A key of a tenant that may call it.")
@click.option("--plot", type=click.Path(path_type=Path), help="Writes the chart to this SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def main(
    context: click.Context, *, quality: float, ratio: float, gateway: str | None, model: str, key: str,
    plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the rules of groups on the labelled prompts (some seconds)."""
    if context.invoked_subcommand is not None:
        return
    prompts = read_prompts()
    sure = None if gateway is None else sureness(prompts, gateway=gateway, key=key, model=model)
    rows, decision = rows_of(prompts, quality, ratio, sure), decision_ms(prompts)
    if plot is not None:
        draw(rows, plot)
    shown = {name: {key: value for key, value in row.items() if key != "curve"} for name, row in rows.items()}
    if as_json:
        click.echo(json.dumps({"prompts": len(prompts), "decision_ms_p99": decision, "rules": shown}))
    else:
        click.echo(f"{len(prompts)} prompts; a decision takes {decision:.2f} ms (p99)")
        for name, row in shown.items():
            threshold = "" if row["threshold"] is None else f", threshold {row['threshold']:.2f}"
            mix = f", random mix {row['random_mix_cost']:.2f}" if "random_mix_cost" in row else ""
            click.echo(f"{name}: cost {row['cost']:.2f}{mix}, quality {row['quality']:.2f}{threshold}")
    best = rows["classified"]
    missed = best["cost"] >= min(best["random_mix_cost"], 1.0) or decision > DECISION_MS_MAX
    context.exit(int(missed))


@main.command("train")
def train_command() -> None:
    """Train on all prompts, and write the weights that the gateway loads."""
    content = stored(train(read_prompts()))
    WEIGHTS.write_bytes(content)
    click.echo(f"{WEIGHTS}: {len(content)} bytes")


if __name__ == "__main__":
    main()
