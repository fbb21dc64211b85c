"""Measures what a second replica on the same machine adds: tokens per second of two real replicas, each bound to a core
of its own, to those of one of them. It starts a stack of two in TENORA_HOME, which must not run, and stops it.

One of the two is cordoned in every other measurement, so that both figures come from the same processes, and half of
the callers wait meanwhile: a batch is as large on two replicas as on one. The load, the gateway and the stores share
the cores with the engines.
"""

import contextlib
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click
import openai

from tenora.client import TenoraError
from tenora.demo.control import ControlPlane
from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.base_model import MODEL_ID
from tenora.stack.status import read_status
from tenora.stack.up_down import start_stack, stop_stack

GOAL: Final = 1.6
_CORDON: Final = "/api/v1/admin/cordons/replica/rep_2"
_SETTLE_S: Final = 3.0
_TOKENS: Final = 128
_WIDE: Final = 1_000_000_000
_LIMITS: Final = {
    "requests_per_minute": _WIDE, "tokens_per_minute": _WIDE, "concurrent_requests": 256, "kv_pages": 1 << 20,
    "tokens_per_month": _WIDE, "context_tokens": 2048, "output_tokens": 1024, "adapters": 1, "adapter_rank": 16,
    "adapter_bytes": 1 << 20,
}  # fmt: skip
_PRICES: Final = {"input_nanos": 1, "cached_input_nanos": 1, "output_nanos": 1, "kv_page_second_nanos": 1}


def _keep_asking(url: str, key: str, may_ask: threading.Event, ended: threading.Event) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=20, timeout=300) as sdk:
        number = 0
        while not ended.is_set():
            number += 1
            may_ask.wait()
            stream = sdk.completions.create(
                model=MODEL_ID, prompt=f"{threading.get_ident()} {number}", max_tokens=_TOKENS, stream=True,
                logit_bias={"0": -100, "2": -100},
            )  # fmt: skip
            for _ in stream:
                pass


def _tokens(admin: ControlPlane) -> int:
    return sum(replica["counted_tokens"] for replica in admin.get("/api/v1/admin/replicas")["data"])


def _tokens_per_s(admin: ControlPlane, seconds: float) -> float:
    before, began = _tokens(admin), time.monotonic()
    time.sleep(seconds)
    return (_tokens(admin) - before) / (time.monotonic() - began)


def measure(settings: StackSettings, *, streams: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Tokens per second of one and of two replicas in each round, and the median of the rounds' ratios."""
    now = read_status(settings, secrets=True)
    one: list[float] = []
    two: list[float] = []
    always, both_serve, ended = threading.Event(), threading.Event(), threading.Event()
    always.set()
    with ControlPlane(now["control_url"], now["admin_key"]) as admin, ThreadPoolExecutor(2 * streams) as callers:
        name = f"replicas-{time.time_ns()}"
        admin.post("/api/v1/admin/plans", {"name": name, "limits": _LIMITS, "prices": _PRICES})
        tenant = admin.post("/api/v1/admin/tenants", {"name": name, "plan": name})
        key = admin.post(f"/api/v1/admin/tenants/{tenant['id']}/api-keys", {"name": name})["key"]
        running = [
            callers.submit(_keep_asking, now["gateway_url"], key, may_ask, ended)
            for may_ask in (always, both_serve)
            for _ in range(streams)
        ]
        try:
            for number in range(1, rounds + 1):
                both_serve.clear()
                admin.put(_CORDON, {"reason": "a benchmark of one replica"})
                time.sleep(_SETTLE_S + _TOKENS / 10)  # its streams end
                one.append(_tokens_per_s(admin, seconds))
                admin.delete(_CORDON)
                both_serve.set()
                time.sleep(_SETTLE_S + _TOKENS / 10)
                two.append(_tokens_per_s(admin, seconds))
                click.echo(f"round {number} of {rounds}: one {one[-1]:.0f}, two {two[-1]:.0f} tokens/s", err=True)
        finally:
            with contextlib.suppress(TenoraError):  # it was lifted
                admin.delete(_CORDON)
            ended.set()
            both_serve.set()
            for each in running:
                each.result()
    ratios = [both / alone for alone, both in zip(one, two, strict=True)]
    return {"one_tokens_per_s": one, "two_tokens_per_s": two, "ratio": statistics.median(ratios), "goal": GOAL}


@click.command()
@click.option("--streams", default=16, show_default=True, help="Streams for each replica that serves.")
@click.option("--rounds", default=3, show_default=True, help="Rounds of one and of two replicas.")
@click.option("--seconds", default=20.0, show_default=True, help="Seconds of each measurement.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the result to this file.")
def main(streams: int, rounds: int, seconds: float, json_path: Path | None) -> None:
    """Measure two replicas beside one (five minutes)."""
    settings = StackSettings(replicas=2)
    if daemon.is_up(settings):
        raise click.ClickException(f"a stack runs in {settings.root}; stop it, or set TENORA_HOME")
    try:
        start_stack(settings)
        result = measure(settings, streams=streams, rounds=rounds, seconds=seconds)
    finally:
        stop_stack(settings)
    if json_path:
        json_path.write_text(json.dumps(result, indent=1))
    click.echo(f"two replicas to one: {result['ratio']:.2f} (goal: at least {GOAL})")
    sys.exit(0 if result["ratio"] >= GOAL else 1)


if __name__ == "__main__":
    main()
