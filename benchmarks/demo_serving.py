"""Serving policies on two real engines, in four minutes: ``make demo-serving``.

A batch runs behind chats, a classified and an escalated answer show both prices, an overflow goes to the smaller model,
and a provider's outage is ridden out. The provider is a simulator, and says so. Everything else is the product.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import httpx
import openai
from openai.types.chat import ChatCompletionMessageParam

from benchmarks.scene import Scene, check
from data_plane.engine.plugin import installed_engine
from tenora.demo.control import ControlPlane
from tenora.stack.base_model import MODEL_ID, materialize
from tenora.training.shrink import shrink
from tests.conftest import wait_until
from tests.e2e.conftest import LIMITS, Platform, running_platform
from tests.fixtures.providers.simulator import Fault, OpenAISimulator, simulated

GOAL_S: Final = 240
SMALL, OUTSIDE = "smollm2-small", "outside-model"
LAYERS: Final = 6
LINES, LINE_TOKENS = 48, 16
CHATS, PAUSE_S = 8, 0.4
LONG_TOKENS, FULL_AFTER_S = 1000, 8.0
NEVER_ENDS: Final = {"0": -100, "2": -100}
ADD: Final = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SETTINGS = {"TENORA_QUEUE_WAIT_S": "60"}


@dataclass
class Answer:
    """What a caller sees of one whole answer."""

    text: str
    model: str
    reason: str
    request_id: str
    seconds: float


def chats(client: openai.OpenAI, turns: range) -> list[float]:
    """Seconds until the first token of short chats, one after the other. Other turns have other prompts: one that the
    engine has in its cache is faster.
    """
    found = []
    for turn in turns:
        began = time.monotonic()
        asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"What is {turn} and {turn}?"}]
        for chunk in client.chat.completions.create(model=MODEL_ID, messages=asked, max_tokens=8, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                found.append(time.monotonic() - began)
                break
        time.sleep(PAUSE_S)
    return found


def ask(client: openai.OpenAI, model: str, text: str, **options: Any) -> Answer:
    """One whole answer. Raises as the SDK does."""
    began = time.monotonic()
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": text}], **{"max_tokens": 12, **options}
    )
    answer, headers = raw.parse(), raw.headers
    return Answer(
        answer.choices[0].message.content or "", answer.model, headers.get("x-route-reason", ""),
        headers["x-request-id"], time.monotonic() - began,
    )  # fmt: skip


class Demo:
    """One run over a running platform. ``admin`` and ``mine`` are clients with the admin's and the tenant's key."""

    def __init__(self, scene: Scene, platform: Platform, admin: ControlPlane, provider: OpenAISimulator) -> None:
        now = platform.status()
        self.scene, self.platform, self.admin, self.provider = scene, platform, admin, provider
        self.gateway_url, self.control_url = now["gateway_url"], now["control_url"]

    def tenora(self, *arguments: str) -> str:
        ran = self.platform.run(*arguments)
        if ran.returncode:
            raise RuntimeError(f"tenora {' '.join(arguments)}: {ran.stderr}{ran.stdout}")
        return str(ran.stdout)

    def register_smaller(self, folder: Path) -> str:
        """A base model of this checkpoint. Returns the digest of its weights."""
        self.tenora("base-models", "add", str(folder), "--id", SMALL, "--hub-name", "tests/small")
        return self.tenora("base-models", "push", str(folder)).strip()

    def serve_smaller(self, digest: str) -> None:
        """A pool with one real engine for the smaller model."""
        device, version = installed_engine()
        self.tenora("pools", "create", SMALL, "--base-model", SMALL)
        self.tenora("pools", "revise", SMALL, "--weights", digest, "--engine", f"vllm {version} {device}")
        self.tenora("pools", "use", SMALL, "1")

    def wait_for_smaller(self) -> None:
        serving = [{"revision": 1, "state": "ready", "count": 1}]
        wait_until(
            lambda: self.admin.get(f"/api/v1/admin/pools/{SMALL}")["replicas"] == serving,
            timeout_s=300, what="the smaller model's engine",
        )  # fmt: skip

    def register_provider(self) -> None:
        """The simulator as a provider, with a model that costs and sells."""
        provider = {"name": "simulated", "kind": "openai", "url": self.provider.url, "key": "sk-simulated"}
        self.admin.post("/api/v1/admin/providers", provider)
        costs = {"input_nanos": 1_000, "cached_input_nanos": 100, "output_nanos": 4_000}
        model = {"id": OUTSIDE, "model": "simulator", "counts_like": MODEL_ID, "context_tokens": 2048}
        self.admin.post("/api/v1/admin/providers/simulated/models", model | costs)

    def new_tenant(self) -> str:
        """A key of a tenant on a plan with a price for each model."""

        def prices(input_usd: float, output_usd: float) -> dict[str, int]:
            """For a million tokens each."""
            prompt, generated = int(1_000 * input_usd), int(1_000 * output_usd)
            return {
                "input_nanos": prompt, "cached_input_nanos": prompt // 5, "output_nanos": generated,
                "kv_page_second_nanos": 0,
            }  # fmt: skip

        card = prices(5, 10) | {
            "models": [
                {"base_model": SMALL, **prices(0.5, 1)},
                {"base_model": OUTSIDE, **prices(10, 20)},
            ],
            "batch_factor_permille": 500,
        }
        self.admin.post("/api/v1/admin/plans", {"name": "serving", "limits": LIMITS, "prices": card})
        tenant = self.admin.post("/api/v1/admin/tenants", {"name": "serving", "plan": "serving"})
        path = f"/api/v1/admin/tenants/{tenant['id']}/api-keys"
        return str(self.admin.post(path, {"name": "demo"})["key"])

    def batch_behind_chats(self, client: openai.OpenAI, work: Path) -> None:
        """The first token of chats, alone and with a batch behind them, which completes."""
        chats(client, range(2))  # the first prompts of an engine compile
        alone = chats(client, range(10, 10 + CHATS))
        lines = work / "requests.jsonl"
        lines.write_text(
            "".join(
                json.dumps({
                    "custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions",
                    "body": {
                        "model": MODEL_ID, "max_tokens": LINE_TOKENS,
                        "messages": [{"role": "user", "content": f"Write a word that begins like {number}."}],
                    },
                }) + "\n"
                for number in range(LINES)
            )
        )  # fmt: skip
        with lines.open("rb") as content:
            file = client.files.create(file=content, purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        wait_until(lambda: done(client, batch.id) > 0, timeout_s=60, what="the batch's first lines")
        behind = chats(client, range(30, 30 + CHATS))
        finished = done(client, batch.id)
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", timeout_s=120, what="the batch")
        ended = client.batches.retrieve(batch.id)
        counts = ended.request_counts
        usage = client.files.content(ended.output_file_id or "").text.count("\n")
        self.scene.say(
            f"  first token, median: {statistics.median(alone):.2f} s alone, {statistics.median(behind):.2f} s with "
            f"the batch behind ({finished} of {LINES} lines done by then)"
        )
        check(counts is not None and counts.completed == usage == LINES, f"{LINES} lines completed, none failed")
        check(
            statistics.median(behind) <= 1.5 * statistics.median(alone) + 0.05,
            "chats keep their first token: at most 1.5 times as late, and 50 ms",
        )

    def classified(self, client: openai.OpenAI, mine: ControlPlane) -> None:
        """An easy question goes to the smaller model, one with tools to the larger."""
        self.group(client, mine, "auto", "classified", SMALL, MODEL_ID, threshold_percent=40)
        easy = ask(client, "auto", "What colour is the sky?")
        tools = ask(client, "auto", "What is 2 and 2?", tools=[ADD], tool_choice="none")
        for answer in (easy, tools):
            self.scene.say(f"  {answer.reason}: {answer.model}, {self.price(mine, answer.request_id)}")
        check(easy.model == SMALL, "an easy question is answered by the smaller model")
        check((tools.model, tools.reason) == (MODEL_ID, "tools"), "a question with tools by the larger")

    def escalated(self, client: openai.OpenAI, mine: ControlPlane) -> None:
        """The smaller model's unsure answer is replaced; both calls have a price."""
        self.group(client, mine, "careful", "cascade", SMALL, MODEL_ID, threshold_percent=99)
        answer = ask(client, "careful", "Name three rivers.")
        check((answer.model, answer.reason) == (MODEL_ID, "escalated"), "the unsure first answer was replaced")
        rows = self.rows(mine, lambda row: answer.request_id in (row["request_id"], row.get("first_request_id")), 2)
        for row in rows:
            self.scene.say(f"  {row['model_used']} ({row['route_reason']}): {usd(row['price_nanos'])}")

    def overflow(self, client: openai.OpenAI, mine: ControlPlane) -> None:
        """While the larger model's engine has no room, the smaller one answers, and says so."""
        self.group(client, mine, "patient", "overflow", SMALL, MODEL_ID, patience_ms=300, priority_tier_max=-1)
        with self.full(client):
            answer = ask(client, "patient", "Name a colour.", max_tokens=LONG_TOKENS, stop=[" "])
        self.scene.say(f"  {answer.reason}: {answer.model} after {answer.seconds:.1f} s")
        check((answer.model, answer.reason) == (SMALL, "overflow"), "the smaller model answered")

    @contextmanager
    def full(self, client: openai.OpenAI) -> Iterator[None]:
        """While the block runs, the larger model's engine has no room for another long answer: streams are begun until
        one has to wait.
        """
        impatient = client.with_options(timeout=FULL_AFTER_S)
        with ExitStack() as streams:
            with suppress(openai.APITimeoutError, httpx.ReadTimeout):
                while True:
                    stream = impatient.completions.create(
                        model=MODEL_ID, prompt="The sea", max_tokens=LONG_TOKENS, stream=True, logit_bias=NEVER_ENDS
                    )
                    streams.enter_context(stream)
                    next(iter(stream))
            yield

    def outage(self, client: openai.OpenAI, mine: ControlPlane) -> None:
        """The provider fails under load; its group's other member answers every request."""
        self.group(client, mine, "outside", "overflow", SMALL, OUTSIDE)
        wait_until(lambda: ask(client, "outside", "hi").model == OUTSIDE, what="the provider to answer")
        before = ask(client, "outside", "hi")
        self.provider.faults += [Fault(status=503)] * 1_000
        with ThreadPoolExecutor(4) as callers:
            during = list(callers.map(lambda turn: ask(client, "outside", f"hi {turn}", max_tokens=4), range(16)))
        self.provider.faults.clear()
        wait_until(lambda: ask(client, "outside", "hi").model == OUTSIDE, timeout_s=60, what="the provider's return")
        models = Counter(answer.model for answer in during)
        self.scene.say(f"  before: {before.model} ({before.reason}); during: {dict(models)}; after: {OUTSIDE} again")
        check(models == {SMALL: 16}, "no request failed, and the smaller model answered all")

    def reconcile(self) -> None:
        """Engines, ledger and invoices, and what the provider charged."""
        found = self.platform.reconcile_when_settled()
        self.admin.post("/api/v1/admin/billing/close", {"until": "now"})
        found = self.admin.get("/api/v1/admin/reconciliation")
        check(
            not found["unexplained_drift_tokens"] and found["ledger_tokens"] == found["invoiced_tokens"] > 0,
            f"engines, ledger and invoices agree: {found['ledger_tokens']:,} tokens, "
            f"{found['provider_tokens']:,} of them at the provider",
        )

    def group(
        self, client: openai.OpenAI, mine: ControlPlane, name: str, rule: str, *members: str, **fields: Any
    ) -> None:
        """Make a group, the least able member first, and wait until the gateway lists it."""
        body = {"name": name, "rule": rule, "members": [{"model": model} for model in members]}
        mine.post("/api/v1/model-groups", body | fields)
        wait_until(lambda: name in {each.id for each in client.models.list()}, what=f"the group {name}")

    def price(self, mine: ControlPlane, request_id: str) -> str:
        (row,) = self.rows(mine, lambda row: row["request_id"] == request_id, 1)
        return usd(row["price_nanos"])

    def rows(self, mine: ControlPlane, wanted: Any, count: int) -> list[dict[str, Any]]:
        """So many rows of the request log, once they are there."""
        found: list[dict[str, Any]] = []

        def are_there() -> bool:
            found[:] = [row for row in mine.get("/api/v1/requests")["data"] if wanted(row)]
            return len(found) == count

        wait_until(are_there, timeout_s=30, what="the rows of the request log")
        return found


def done(client: openai.OpenAI, batch_id: str) -> int:
    """Lines of the batch that are completed."""
    counts = client.batches.retrieve(batch_id).request_counts
    return 0 if counts is None else counts.completed


def usd(nanos: int) -> str:
    """An amount of nanodollars in dollars."""
    return f"${nanos / 1e9:.6f}"


def play(scene: Scene, demo: Demo, work: Path) -> None:
    """The scenes in their order. The smaller model's engine starts after the batch: its start would delay the chats."""
    with scene.step("a smaller model, a provider, and a tenant"):
        small = work / "small"
        shrink(work / "checkpoint", small, layers=LAYERS, steps=2, seed=1, progress=lambda *_: None)
        digest = demo.register_smaller(small)
        demo.register_provider()
        key = demo.new_tenant()
    with (
        ControlPlane(demo.control_url, key) as mine,
        openai.OpenAI(base_url=f"{demo.gateway_url}/v1", api_key=key, max_retries=0, timeout=120) as client,
    ):
        wait_until(lambda: MODEL_ID in {each.id for each in client.models.list()}, what="the tenant's models")
        with scene.step(f"a batch of {LINES} lines behind chats"):
            demo.batch_behind_chats(client, work)
        with scene.step("the smaller model's engine"):
            demo.serve_smaller(digest)
            demo.wait_for_smaller()
        with scene.step("a classified answer"):
            demo.classified(client, mine)
        with scene.step("an escalated answer"):
            demo.escalated(client, mine)
        with scene.step("an overflow"):
            demo.overflow(client, mine)
        with scene.step("a provider's outage"):
            demo.outage(client, mine)
    with scene.step("engines, ledger and invoices"):
        demo.reconcile()


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with all logs.")
def main(*, keep: bool) -> None:
    """Show batch, model groups, overflow and an outside provider on two real engines, and reconcile."""
    scene, work = Scene(), Path(tempfile.mkdtemp(prefix="tenora-serving-"))
    scene.say(f"logs: {work}")
    checkpoint = materialize(Path(".tenora").resolve(), scene.say)
    (work / "checkpoint").symlink_to(checkpoint)
    home = work / "home"
    home.mkdir()
    with ExitStack() as up:
        provider = up.enter_context(simulated(OpenAISimulator()))
        settings = SETTINGS | {"TENORA_PROVIDER_INWARD_HOSTS": provider.host}
        platform = up.enter_context(running_platform(checkpoint, home, **settings))
        scene.say("one real engine serves")
        now = platform.status(secrets=True)
        admin = up.enter_context(ControlPlane(now["control_url"], now["admin_key"]))
        play(scene, Demo(scene, platform, admin, provider), work)
    scene.say(f"done; the goal is {GOAL_S} s")
    if not keep:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
