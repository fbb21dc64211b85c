"""Flips and rollbacks under traffic on a real vLLM: after a move is acknowledged, no request is served by the wrong
revision, and no revision uses a prefix that another revision has cached.
"""

import asyncio
import itertools
from dataclasses import dataclass

import openai
import pytest

from adapters.base_model_spec import describe
from tenora.demo.control import ControlPlane
from tenora.stack.base_model import HUB_NAME
from tests.fixtures.engine.real_engine import ANSWER_S
from tests.fixtures.uploads.peft_adapters import ALL_KINDS, write_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

NAME = "flipping"
MOVES = 8
CALLERS = 4
# Long enough for several KV blocks of 32 tokens, and different from its first word on.
PROMPTS = [
    f"{word} " + " ".join(f"{word} and {number} more of them," for number in range(14))
    for word in ("apples", "bridges", "candles", "dolphins", "engines", "forests")
]


@dataclass(frozen=True)
class Served:
    sent_at: float
    ended_at: float
    revision: str
    prompt: int
    cached_tokens: int


@pytest.fixture(scope="module")
def tenant(platform):
    _, key = platform.new_tenant("flips")
    now = platform.status()
    control = ControlPlane(now["control_url"], key)
    yield control, key, now["gateway_url"]
    control.close()


@pytest.fixture(scope="module")
def revisions(tenant, checkpoint, tmp_path_factory) -> list[str]:
    control, _, _ = tenant
    spec = describe(checkpoint, id="smollm2-135m-instruct", hub_name=HUB_NAME)
    work = tmp_path_factory.mktemp("flips")
    folders = [
        write_adapter(work / str(seed), spec, rank=8, seed=seed, scale=0.1, modules=ALL_KINDS) for seed in (1, 2)
    ]
    first = control.upload_adapter(NAME, spec.id, folders[0])["id"]
    return [first, control.upload_revision(NAME, folders[1])["id"]]


async def flip_under_traffic(tenant, revisions) -> tuple[list[Served], list[tuple[float, float, str]]]:
    control, key, gateway_url = tenant
    sdk = openai.AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key=key, max_retries=0, timeout=ANSWER_S)
    served: list[Served] = []
    moves: list[tuple[float, float, str]] = []
    stop = asyncio.Event()
    clock = asyncio.get_running_loop().time

    async def call(caller: int) -> None:
        for number in itertools.count(caller):
            if stop.is_set():
                return
            sent_at, prompt = clock(), number % len(PROMPTS)
            answer = await sdk.completions.with_raw_response.create(
                model=NAME, prompt=PROMPTS[prompt], max_tokens=4, temperature=0
            )
            details = answer.parse().usage.prompt_tokens_details
            revision = answer.headers["x-tenora-revision"]
            served.append(Served(sent_at, clock(), revision, prompt, details.cached_tokens or 0))

    callers = [asyncio.create_task(call(number)) for number in range(CALLERS)]

    async def more_calls() -> None:
        """Until each caller has been answered twice, on average: at least one call each began meanwhile."""
        wanted = len(served) + 2 * CALLERS
        while len(served) < wanted:
            done, _ = await asyncio.wait(callers, timeout=0.02, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()

    for move in range(MOVES):
        await more_calls()
        revision = revisions[(move + 1) % 2]
        sent_at = clock()
        moved = await asyncio.to_thread(control.put, f"/api/v1/adapters/{NAME}/aliases/prod", {"revision": revision})
        assert moved["acknowledged"]
        moves.append((sent_at, clock(), revision))
    await more_calls()
    stop.set()
    await asyncio.gather(*callers)
    await sdk.close()
    return served, moves


def filled_by_its_own(one: Served, served: list[Served]) -> bool:
    """Whether a call of the same revision with the same prompt could have cached what ``one`` found."""
    return any(
        other is not one
        and (other.revision, other.prompt) == (one.revision, one.prompt)
        and other.sent_at < one.ended_at
        for other in served
    )


def test_no_call_is_served_by_the_wrong_revision_or_its_cached_prefixes(tenant, revisions, capsys):
    served, moves = asyncio.run(flip_under_traffic(tenant, revisions))
    ends = [*(sent_at for sent_at, _, _ in moves[1:]), float("inf")]
    wrong, judged = 0, 0
    for (_, acknowledged_at, revision), end in zip(moves, ends, strict=True):
        after = [each for each in served if acknowledged_at <= each.sent_at < end]
        judged += len(after)
        wrong += sum(each.revision != revision for each in after)
    stale = sum(each.cached_tokens > 0 and not filled_by_its_own(each, served) for each in served)
    cached_later = sum(each.cached_tokens > 0 for each in served)
    slowest = max(done - sent for sent, done, _ in moves)
    with capsys.disabled():
        print(
            f"\n  {MOVES} moves, slowest acknowledged after {slowest:.2f} s; {len(served)} calls, {judged} after"
            f" a move, {wrong} wrong; {cached_later} met their own revision's cache, {stale} another's"
        )
    assert judged > MOVES, "requests followed the moves"
    assert wrong == 0
    assert stale == 0
    assert cached_later > len(PROMPTS), "the prefix cache works, so a stale hit could have been seen"
    assert slowest < 1
