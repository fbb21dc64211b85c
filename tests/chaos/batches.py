"""Kills under the lines of a batch: each line is answered and billed once, and no token is missing in the ledger.

It runs on the stack of control.py, with a batch process and a billing worker. OpenAI's SDK uploads and reads through
the gateway.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import openai
import sqlalchemy as sa

from control_plane import database_roles
from core.contracts.usage import CHECKPOINT_TOKENS_MAX, YIELDED
from tenora.stack.program import Program
from tests.chaos.control import Plane
from tests.chaos.kills import WINDOW_S, Kill, Victim
from tests.chaos.verdict import emitted, quiet
from tests.conftest import wait_until
from tests.fixtures.control_plane.two_gateways import AMPLE
from tests.fixtures.control_plane.worker import environment
from tests.fixtures.gateway.tiny_tokenizer import tiny_route

LINES_OF_A_KILL: Final = 25
TOKENS: Final = 8  # of each line, one every 50 ms
LINE_S: Final = 0.4  # the range of the instant, after three more lines have been billed
AT_ONCE: Final = 8
ENDPOINT: Final = "/v1/chat/completions"
VICTIMS: Final = {one.name: one for one in (
    Victim("batch", ("batch",)), Victim("its gateway", ("gw_control",)), Victim("its replica", ("rep_control",)),
)}  # fmt: skip
_DONE: Final = "SELECT request_id, output_tokens FROM usage_records WHERE tenant_id = :tenant AND outcome = 'done'"
_YIELDED: Final = "SELECT request_id, output_tokens FROM yielded_usage WHERE tenant_id = :tenant"
_OTHERS: Final = "SELECT count(*) FROM usage_records WHERE tenant_id = :tenant AND outcome <> 'done'"


@dataclass
class BatchResult:
    """Sums over the kills of one victim: lines of its batches, those without an answer or a bill, those billed more
    than once, and tokens.
    """

    victim: Victim
    runs: int = 0
    lines: int = 0
    lost: int = 0
    duplicated: int = 0
    billed_tokens: int = 0
    yielded_tokens: int = 0
    unrecorded_tokens: int = 0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.runs} kills, {self.lines} lines, lost {self.lost}, duplicated {self.duplicated}, "
            f"problems {len(self.problems)}"
        )


@contextmanager
def batch_process(plane: Plane) -> Iterator[None]:
    """Start the batch process and a billing worker."""
    made = plane.made
    more = {"TENORA_GATEWAY_URL": plane.gateway, "TENORA_BATCH_CONCURRENCY_MAX": str(AT_ONCE)}
    env = environment(plane.api.settings, database_roles.WORKER, **more)
    argv = (sys.executable, "-m", "control_plane", "batch")
    made.start(Program(name="batch", argv=argv, ready=lambda: True, log=made.folder / "batch.log", env=env))
    made.billing()
    yield
    for name in ("batch", "billing"):
        made.retire(name)


def run(plane: Plane, total: BatchResult, *, seed: int, kills: int) -> Iterator[None]:
    """Run a batch and kill the victim ``kills`` times under its lines. Yields after each kill, and at the end, when the
    answers and the bills have been compared.
    """
    made, tenant, victim = plane.made, plane.api.tenant(**AMPLE), total.victim
    total.lines += kills * LINES_OF_A_KILL
    witness = made.witnesses["rep_control"]
    witness.faults(token_interval_s=LINE_S / TOKENS, output_tokens=TOKENS)
    with openai.OpenAI(base_url=f"{plane.gateway}/v1", api_key=tenant.key, max_retries=5) as sdk:
        wait_until(lambda: _knows(sdk), timeout_s=30, what="the gateway to know a tenant")
        lines = b"".join(_line(f"c{number}") for number in range(total.lines))
        file = sdk.files.create(file=("input.jsonl", lines), purpose="batch")
        batch = sdk.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        for number in range(seed, seed + kills):
            before = len(_tokens(plane, _DONE, tenant.id))
            wait_until(
                lambda before=before: len(_tokens(plane, _DONE, tenant.id)) >= before + 3,
                timeout_s=60,
                what="three more lines to be billed",
            )
            time.sleep(Kill(victim, number).instant_s * LINE_S / WINDOW_S)
            made.kill(*victim.processes)
            made.restart(*victim.processes)
            if "rep_control" in victim.processes:
                witness.faults(token_interval_s=LINE_S / TOKENS, output_tokens=TOKENS)
            total.runs += 1
            yield
        done = wait_until(lambda: _ended(sdk, batch.id), timeout_s=240, what="the batch to end")
        _judge(plane, sdk, tenant.id, done, total)
    yield


def _line(custom_id: str) -> bytes:
    body = {"model": tiny_route().id, "max_tokens": TOKENS, "messages": [{"role": "user", "content": custom_id}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}).encode() + b"\n"


def _asked(received: dict) -> str:
    """The custom id of a line, which is also what it asks."""
    return str(received["body"]["messages"][0]["content"])


def _knows(sdk: openai.OpenAI) -> bool:
    try:
        return bool(sdk.models.list().data)
    except openai.APIError:
        return False


def _ended(sdk: openai.OpenAI, batch_id: str) -> openai.types.Batch | None:
    found = sdk.batches.retrieve(batch_id)
    return found if found.status in ("completed", "failed", "expired", "cancelled") else None


def _tokens(plane: Plane, sql: str, tenant: str) -> dict[str, int]:
    with plane.made.engine.connect() as connection:
        rows = connection.execute(sa.text(sql), {"tenant": tenant})
        return {row.request_id: row.output_tokens for row in rows}


def _judge(plane: Plane, sdk: openai.OpenAI, tenant: str, batch: openai.types.Batch, total: BatchResult) -> None:
    """Compare the batch's files, its usage, the ledger and what the replica journaled."""
    output = [json.loads(each) for each in sdk.files.content(batch.output_file_id).read().splitlines()]
    answered = Counter(each["custom_id"] for each in output)
    quiet(plane.made)
    billed, yielded = _tokens(plane, _DONE, tenant), Counter[str]()
    for name, tokens in _tokens(plane, _YIELDED, tenant).items():
        yielded[name.partition(YIELDED)[0]] += tokens
    # By line: one that was billed and whose answer died with its gateway runs again under another id, for free.
    asked = {each["received"]: _asked(each) for each in plane.made.witnesses["rep_control"].received()}
    paid = Counter(asked[name] for name in billed)
    total.lost = total.lines - len(answered.keys() & paid.keys())
    total.duplicated = sum(count - 1 for found in (answered, paid) for count in found.values())
    total.billed_tokens, total.yielded_tokens = sum(billed.values()), yielded.total()
    problems = total.problems
    if batch.status != "completed" or batch.error_file_id or batch.request_counts.completed != total.lines:
        problems.append(f"the batch ended as {batch.status}, {batch.request_counts}")
    if total.lost or total.duplicated:
        problems.append(f"{total.lost} lines were lost and {total.duplicated} billed or answered twice")
    if batch.usage.output_tokens != total.billed_tokens:
        problems.append(f"the batch shows {batch.usage.output_tokens} tokens, the ledger {total.billed_tokens}")
    with plane.made.engine.connect() as connection:
        if others := connection.execute(sa.text(_OTHERS), {"tenant": tenant}).scalar_one():
            problems.append(f"{others} lines were billed for runs that did not end")
    journal = emitted(plane.made)
    lost_tokens_max = CHECKPOINT_TOKENS_MAX if total.victim.processes != ("batch",) else 0
    for name, tokens in billed.items():
        computed = sum(one.output_tokens for one in journal.get(name, {}).values())
        unrecorded = computed - tokens - yielded[name]
        total.unrecorded_tokens += unrecorded
        if not 0 <= unrecorded <= lost_tokens_max:
            problems.append(f"{name}: {computed} tokens computed, {tokens} billed and {yielded[name]} yielded")
