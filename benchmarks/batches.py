"""A batch on a real engine: its lines a second, to a closed loop on the engine itself, and what it does to chats.

Run: ``python -m benchmarks.batches``. Starts a stack of its own and prints each goal with its figure; exits with status
1 when a goal is missed.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
import openai

from benchmarks.demo_serving import chats
from benchmarks.goals import judged, report
from benchmarks.load import quantile, send
from tenora.stack.base_model import MODEL_ID, materialize
from tenora.stack.secrets_file import load_secrets
from tests.conftest import wait_until
from tests.e2e.conftest import Platform, running_platform

ENDPOINT: Final = "/v1/completions"
TOKENS: Final = 16
NEVER_ENDS: Final = {"0": -100, "2": -100}  # both tokens that end an answer of this model
GOALS: Final = {
    "lines of a batch a second, to a closed loop on the engine": (">=", 0.90),
    "chats' TTFT p99 with endless batch behind them, to without": ("<=", 1.5),
}


def body(number: int) -> dict[str, Any]:
    """One request, of exactly ``TOKENS``."""
    return {"model": MODEL_ID, "prompt": f"Number {number} is", "max_tokens": TOKENS, "logit_bias": NEVER_ENDS}


def begin(client: openai.OpenAI, lines: int) -> str:
    """Create a batch. Returns its id."""
    content = "".join(
        json.dumps({"custom_id": f"{number}", "method": "POST", "url": ENDPOINT, "body": body(number)}) + "\n"
        for number in range(lines)
    )
    file = client.files.create(file=("lines.jsonl", content.encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h").id


def seconds_of_lines(client: openai.OpenAI, batch_id: str) -> float:
    """From the end of the checks until the last line has its answer."""

    def reaches(*statuses: str) -> float:
        wait_until(lambda: client.batches.retrieve(batch_id).status in statuses, timeout_s=900, what=statuses[0])
        return time.monotonic()

    began = reaches("in_progress", "finalizing", "completed")
    ended = reaches("finalizing", "completed")
    wait_until(lambda: client.batches.retrieve(batch_id).status == "completed", timeout_s=60, what="the files")
    counts = client.batches.retrieve(batch_id).request_counts
    if counts is None or counts.failed:
        raise RuntimeError(f"lines failed: {counts}")
    return ended - began


async def loop_on_the_engine(url: str, key: str, lines: int, concurrency: int) -> float:
    """Lines a second of a closed loop on the replica itself."""
    waiting = iter(range(lines))

    async def caller(session: aiohttp.ClientSession) -> None:
        for number in waiting:
            answer = await send(session, url, key, body(number) | {"stream": False})
            if (answer.status, answer.output_tokens) != (200, TOKENS):
                raise RuntimeError(f"the engine answered {answer.status} with {answer.output_tokens} tokens")

    began = time.monotonic()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as callers:
        for _ in range(concurrency):
            callers.create_task(caller(session))
    return lines / (time.monotonic() - began)


@contextmanager
def endless_batch(client: openai.OpenAI, lines: int) -> Iterator[None]:
    """A batch that has not ended when the block ends; it is cancelled then."""
    batch_id = begin(client, lines)

    def completed() -> int:
        counts = client.batches.retrieve(batch_id).request_counts
        return 0 if counts is None else counts.completed

    wait_until(lambda: completed() > 0, timeout_s=120, what="the batch's first lines")
    yield
    if client.batches.retrieve(batch_id).status != "in_progress":
        raise RuntimeError("the batch ended before the chats: give it more --lines")
    client.batches.cancel(batch_id)
    wait_until(lambda: client.batches.retrieve(batch_id).status == "cancelled", timeout_s=120, what="its cancellation")


def measure(platform: Platform, *, lines: int, turns: int, count: int, concurrency: int) -> dict[str, Any]:
    """Rounds in turn: a batch, then the same lines on the engine itself; then the chats."""
    _, key = platform.new_tenant("batches", concurrent_requests=1_000)
    now, engine_key = platform.status(), load_secrets(platform.settings.root).engine_key
    with platform.admin() as admin:
        (replica,) = admin.get("/api/v1/admin/replicas").json()["data"]
    rounds = []
    with openai.OpenAI(base_url=f"{now['gateway_url']}/v1", api_key=key, max_retries=0, timeout=120) as client:
        seconds_of_lines(client, begin(client, concurrency))  # the first prompts of an engine compile
        for _ in range(turns):
            batch = lines / seconds_of_lines(client, begin(client, lines))
            engine = asyncio.run(loop_on_the_engine(replica["url"], engine_key, lines, concurrency))
            rounds.append({"batch_per_s": batch, "engine_per_s": engine, "ratio": batch / engine})
        alone = chats(client, range(count))
        with endless_batch(client, 5 * lines):
            behind = chats(client, range(count, 2 * count))
    p99 = {"alone": quantile(alone, 0.99), "behind": quantile(behind, 0.99)}
    return {
        "rounds": rounds,
        "ratio": quantile([each["ratio"] for each in rounds], 0.5),
        "p50_s": {"alone": quantile(alone, 0.5), "behind": quantile(behind, 0.5)},
        "p99_s": p99,
        "first_token_ratio": p99["behind"] / p99["alone"],
    }


@click.command()
@click.option("--lines", default=600, help="Lines of each batch.")
@click.option("--turns", default=2, help="Batches, each followed by a closed loop of the same lines.")
@click.option("--chats", "count", default=60, help="Chats alone, and as many with a batch behind them.")
@click.option("--concurrency", default=64, help="Lines at once of the closed loop; a batch finds its own number.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Also write all results to this file.")
def main(lines: int, turns: int, count: int, concurrency: int, out: Path | None) -> None:
    """Measure batches on a real engine, print the goals, write everything."""
    checkpoint = materialize(Path(".tenora").resolve(), click.echo)
    with (
        tempfile.TemporaryDirectory(prefix="tenora-batches-") as home,
        running_platform(checkpoint, Path(home)) as platform,
    ):
        result = measure(platform, lines=lines, turns=turns, count=count, concurrency=concurrency)
    result["goals"] = judged(GOALS, (result["ratio"], result["first_token_ratio"]))
    if out:
        out.write_text(json.dumps(result, indent=1))
    report(result["goals"])


if __name__ == "__main__":
    main()
