"""The main job on a real vLLM: adapters load from S3 on their first request, answers stay apart, and counts add up."""

import asyncio
import itertools
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import pytest_asyncio

from adapters.base_model_spec import describe
from tenora.demo.control import ControlPlane
from tenora.stack.base_model import HUB_NAME
from tests.fixtures.engine.isolation_judge import ROUNDING_DISTANCE, distance, nearest
from tests.fixtures.engine.real_engine import ANSWER_S
from tests.fixtures.uploads.peft_adapters import write_adapter

# One loop for all: an SDK client's connections belong to the loop they were opened in.
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

PROMPT = "What is a mountain?"
NEVER_ENDS = {"0": -100, "2": -100}
"""The tokens at which the base model stops: when it would, differs by the rounding of the CPU."""


@pytest.fixture(scope="module")
def spec(checkpoint):
    return describe(checkpoint, id="smollm2-135m-instruct", hub_name=HUB_NAME)


class Customer:
    def __init__(self, platform, spec, folder, name, seed):
        self.id, self.key = platform.new_tenant(name)
        now = platform.status()
        self.control = ControlPlane(now["control_url"], self.key)
        self.sdk = openai.AsyncOpenAI(
            base_url=now["gateway_url"] + "/v1", api_key=self.key, max_retries=0, timeout=ANSWER_S
        )
        self.adapter = f"{name}-voice"
        # Random weights that differ by 0.5 or more. Stronger ones amplify rounding: at 0.2 one of ten moves by 0.36.
        write_adapter(folder / name, spec, rank=8, seed=seed, scale=0.15)
        self.control.upload_adapter(self.adapter, spec.id, folder / name)

    async def ask(self, model, prompt, max_tokens=12):
        done = await self.sdk.chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], max_tokens=max_tokens, temperature=0
        )
        return done.choices[0].message.content, done.usage

    async def first_step(self, model, prompt, max_tokens=1) -> dict[str, float]:
        """The likeliest first tokens of an answer."""
        done = await self.sdk.chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], max_tokens=max_tokens, temperature=0,
            logprobs=True, top_logprobs=5, logit_bias=NEVER_ENDS,
        )  # fmt: skip
        return {each.token: each.logprob for each in done.choices[0].logprobs.content[0].top_logprobs}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def customers(platform, spec, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    # more adapters than the engine has slots (8), so that slots are full and adapters are swapped under the test
    with ThreadPoolExecutor(3) as uploads:
        made = list(
            uploads.map(lambda number: Customer(platform, spec, folder, f"tenant{number}", seed=number), range(10))
        )
    yield made
    for customer in made:
        await customer.sdk.close()
        customer.control.close()


async def test_mixed_batches_answer_as_each_request_does_alone(customers, model):
    """Base and ten adapters over eight slots: every answer is its own model's, whatever runs beside it.

    Sums in a larger batch are rounded differently, and adapters of random weights are full of near ties, so a text says
    little. The likeliest first tokens tell the models apart: an answer must be nearest to its own model's.
    """
    asked = {model: customers[0], **{customer.adapter: customer for customer in customers}}
    references = {name: await customer.first_step(name, PROMPT) for name, customer in asked.items()}
    for one, other in itertools.combinations(references, 2):
        assert distance(references[one], references[other]) > ROUNDING_DISTANCE, "adapters must differ"
    random_order = random.Random(3)
    contaminated = []
    for _ in range(2):
        pairs = [(customer, which) for customer in customers for which in (model, customer.adapter)]
        random_order.shuffle(pairs)
        steps = await asyncio.gather(*(customer.first_step(which, PROMPT, 12) for customer, which in pairs))
        for (_, which), step in zip(pairs, steps, strict=True):
            if (closest := nearest(step, references)) != which:
                contaminated.append((which, closest, step, references[which]))
    assert contaminated == [], contaminated


async def test_the_gateway_counts_a_prompt_as_the_engine_does(platform, customers, model):
    customer = customers[1]
    for prompt in (PROMPT, "ünïcödé 🏔️", " <|not a token|> ", "a" * 500):
        _, usage = await customer.ask(model, prompt, max_tokens=1)
        asked = {"model": model, "messages": [{"role": "user", "content": prompt}]}
        counted = await customer.sdk.post("/tokenize", body=asked, cast_to=dict)
        assert counted["count"] == usage.prompt_tokens, prompt


async def test_a_caller_who_hangs_up_is_metered_for_exactly_what_the_engine_made(platform, spec, model, tmp_path):
    """In tokens and in KV page-time, also beside parallel sequences."""
    customer = await asyncio.to_thread(Customer, platform, spec, tmp_path, "hangs-up", seed=20)
    before = platform.reconcile_when_settled()
    await customer.sdk.completions.create(model=model, prompt="How do bees fly?", n=3, max_tokens=5)
    for cut_after in (1, 5):
        stream = await customer.sdk.chat.completions.create(
            model=customer.adapter if cut_after == 5 else model,
            messages=[{"role": "user", "content": "Tell me a very long story about the sea."}],
            max_tokens=900,
            temperature=0,
            stream=True,
        )
        chunks = 0
        async for _ in stream:
            chunks += 1
            if chunks > cut_after:
                break
        await stream.close()
    text_stream = await customer.sdk.completions.create(
        model=model, prompt="Once upon a time", max_tokens=900, temperature=0, stream=True
    )
    async for _ in text_stream:
        break
    await text_stream.close()
    hung_up = asyncio.create_task(customer.ask(model, "Tell me another very long story.", max_tokens=900))
    await asyncio.sleep(1)
    hung_up.cancel()
    await asyncio.gather(hung_up, return_exceptions=True)

    after = platform.reconcile_when_settled()
    charged = ledger_tokens(customer)
    assert 0 < charged < 4 * 900 / 2, "the engine was not stopped"
    assert after["engine_tokens"] - before["engine_tokens"] == charged
    page_ms = round(1000 * sum(row["kv_page_seconds"] for row in usage_rows(customer)))
    assert after["engine_kv_page_ms"] - before["engine_kv_page_ms"] == page_ms > 0
    await customer.sdk.close()
    customer.control.close()


@pytest.mark.soak
async def test_a_caller_who_hangs_up_during_the_prefill_pays_for_what_the_engine_computed(platform, customers, model):
    """Engine + aborted prefill = ledger. The prompt is then cached, at the cached price, only as far as it was paid.

    A step of the engine computes 2,048 tokens, so three prompts take three steps: when the first is answered, the
    second or the third is computed in part.
    """
    customer = customers[3]
    before = platform.reconcile_when_settled()
    for attempt in range(20):  # too late, all are computed and charged as answers
        name = customer.adapter if attempt % 2 else model
        prompts = [f"{attempt}, {number}. " + "The sea is wide and the boat is small. " * 140 for number in range(3)]
        asked = [asyncio.create_task(customer.ask(name, prompt, max_tokens=1)) for prompt in prompts]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        after = platform.reconcile_when_settled()
        assert after["drift_tokens"] == before["drift_tokens"]
        paid = after["aborted_prefill_tokens"] - before["aborted_prefill_tokens"]
        if paid:
            break
        before = after
    assert paid, "no attempt ended within the prefill"
    computed = after["engine_tokens"] - before["engine_tokens"]
    assert computed + paid == after["ledger_tokens"] - before["ledger_tokens"]
    assert paid == sum(row.get("aborted_prefill_tokens", 0) for row in usage_rows(customer))
    patient = customer.sdk.with_options(max_retries=12)  # a slow engine may have missed a probe in its long steps
    for prompt in prompts:
        again = await patient.chat.completions.create(
            model=name, messages=[{"role": "user", "content": prompt}], max_tokens=1
        )
        assert again.usage.prompt_tokens_details.cached_tokens <= computed + paid


def usage_rows(customer) -> list[dict]:
    start, end = time.gmtime(time.time() - 43_200), time.gmtime(time.time() + 60)
    return customer.control.get(
        "/api/v1/usage",
        start=time.strftime("%Y-%m-%dT%H:%M:%SZ", start),
        end=time.strftime("%Y-%m-%dT%H:%M:%SZ", end),
        bucket="1d",
    )["data"]


def ledger_tokens(customer) -> int:
    """The tokens that engines count too: all but the prompts that were aborted before their first token."""
    return sum(
        row["input_tokens"] - row.get("aborted_prefill_tokens", 0) + row["output_tokens"]
        for row in usage_rows(customer)
    )


async def test_status_has_all_that_a_client_needs(platform, model):
    shown = platform.run("status", "--json")
    assert shown.returncode == 0
    now = json.loads(shown.stdout)
    assert {"gateway_url", "control_url", "s3_url", "postgres_dsn", "redis_url"} <= now.keys()
    (replica,) = now["replicas"]
    assert (replica["base_model"], replica["state"]) == (model, "ready")
    assert {"id", "url"} <= replica.keys()
    secrets = platform.status(secrets=True)
    assert "@" not in now["postgres_dsn"] + now["redis_url"], "passwords are shown only with --secrets"
    assert "@" in secrets["postgres_dsn"]
    assert "admin_key" not in now
    assert secrets["admin_key"] == platform.run("admin-key").stdout.strip()


async def test_the_engine_refuses_requests_without_its_key(platform):
    engine = platform.status()["replicas"][0]["url"]
    async with httpx.AsyncClient(base_url=engine) as stranger:
        assert (await stranger.post("/v1/completions", json={"model": "x", "prompt": "x"})).status_code == 401
        assert (await stranger.get("/v1/models")).status_code == 401
        assert (await stranger.post("/v1/load_lora_adapter", json={})).status_code == 404


async def test_engine_ledger_and_invoices_have_the_same_tokens(platform, customers, model):
    """What is asked from here on is counted alike by the engine, the ledger and the invoices, to the token."""
    before = platform.reconcile_when_settled()
    pairs = [(customer, which) for customer in customers for which in (model, customer.adapter)]
    answers = await asyncio.gather(*(customer.ask(which, PROMPT) for customer, which in pairs))
    used = sum(usage.total_tokens for _, usage in answers)
    after = platform.reconcile_when_settled()
    assert after["engine_tokens"] - before["engine_tokens"] == used
    assert after["ledger_tokens"] - before["ledger_tokens"] == used
    with platform.admin() as admin:
        admin.post("/api/v1/admin/billing/close", json={"until": "now"}).raise_for_status()
    closed = platform.reconcile_when_settled()
    assert closed["invoiced_tokens"] == closed["ledger_tokens"] == after["ledger_tokens"]
    assert closed["unbilled_tokens"] == 0
