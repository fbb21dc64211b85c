"""A flip and a rollback under traffic: the shop moves its alias ``prod`` to another revision and back while its callers
go on, and nobody is served by the wrong revision once the move was acknowledged.
"""

import asyncio
import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tenora.demo.calls import Callers
from tenora.demo.report import table
from tenora.demo.tenants import Tenant, dataset

_CALLERS: Final = 4
_BETWEEN_MOVES_S: Final = 2.0
_ALIAS: Final = "prod"


@dataclass(frozen=True, kw_only=True)
class Served:
    """One answered call: when it was sent, and the revision that its response names."""

    sent_at: float
    revision: str


@dataclass
class Flip:
    """What the moves showed. ``wrong`` were sent after a move was acknowledged and served by another revision."""

    served: list[Served] = field(default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)
    wrong: int = 0
    unacknowledged: int = 0

    def as_report(self) -> dict[str, Any]:
        """For the demo's JSON."""
        return {
            "requests": len(self.served),
            "wrong_after_acknowledgement": self.wrong,
            "moves": [{key: move[key] for key in ("to", "seconds", "gateways")} for move in self.moves],
        }


def weaker_copy(folder: Path, into: Path) -> Path:
    """The same adapter at half its strength: a second revision that needs no second training."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(folder, into)
    path = into / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "lora_alpha": config["lora_alpha"] / 2}))
    return into


def upload_two_revisions(tenant: Tenant, folder: Path) -> tuple[str, str]:
    """Hold ``prod`` on the newest ready revision, then upload a weaker one; returns the ids of both."""
    path = f"/api/v1/adapters/{tenant.adapter}"
    first: str = tenant.control.get(path)["revision"]
    tenant.control.put(f"{path}/aliases/{_ALIAS}", {"revision": first})
    second = tenant.control.upload_revision(
        tenant.adapter, weaker_copy(folder, folder.with_name(f"{folder.name}-weaker"))
    )
    return first, str(second["id"])


async def flip_and_roll_back(callers: Callers, tenant: Tenant, first: str, second: str) -> Flip:
    """Keep calling the adapter by its bare name while ``prod`` moves from ``first`` to ``second`` and back."""
    flip, stop = Flip(), asyncio.Event()
    traffic = [asyncio.create_task(_call_until(stop, callers, tenant, flip.served)) for _ in range(_CALLERS)]
    try:
        await asyncio.sleep(_BETWEEN_MOVES_S)
        for revision in (second, first):
            await _move(tenant, revision, flip)
            await asyncio.sleep(_BETWEEN_MOVES_S)
    finally:
        stop.set()
        await asyncio.gather(*traffic)
    ends = [*(move["sent_at"] for move in flip.moves[1:]), float("inf")]
    for move, end in zip(flip.moves, ends, strict=True):
        after = [each for each in flip.served if move["done_at"] <= each.sent_at < end]
        flip.wrong += sum(each.revision != move["to"] for each in after)
        move["after"] = len(after)
    return flip


async def _call_until(stop: asyncio.Event, callers: Callers, tenant: Tenant, served: list[Served]) -> None:
    prompts = [example.prompt for example in tenant.task.load(dataset(tenant), "heldout")]
    count = 0
    while not stop.is_set():
        sent_at = time.monotonic()
        response = await callers.client(tenant.id).chat.completions.with_raw_response.create(
            model=tenant.adapter, messages=list(tenant.task.messages(prompts[count % len(prompts)])),  # type: ignore[arg-type] # our TypedDict is one of the SDK's
            max_tokens=8, temperature=0,
        )  # fmt: skip
        served.append(Served(sent_at=sent_at, revision=response.headers["x-tenora-revision"]))
        count += 1


async def _move(tenant: Tenant, revision: str, flip: Flip) -> None:
    sent_at = time.monotonic()
    path = f"/api/v1/adapters/{tenant.adapter}/aliases/{_ALIAS}"
    moved = await asyncio.to_thread(tenant.control.put, path, {"revision": revision})
    done_at = time.monotonic()
    flip.unacknowledged += not moved["acknowledged"]
    flip.moves.append(
        {
            "to": revision, "sent_at": sent_at, "done_at": done_at, "seconds": round(done_at - sent_at, 3),
            "gateways": moved["gateways"],
        }
    )  # fmt: skip


def show_flip(console: Console, tenant: Tenant, flip: Flip) -> None:
    """One line a move."""
    console.print(
        table(
            f"{tenant.name}: {tenant.adapter}:{_ALIAS} moves under traffic ({len(flip.served)} calls)",
            ["move", "acknowledged after", "by gateways", "calls after it", "served by the wrong revision"],
            [
                [what, f"{move['seconds']:.2f} s", str(move["gateways"]), str(move["after"]), str(flip.wrong)]
                for what, move in zip(("flip", "rollback"), flip.moves, strict=True)
            ],
        )
    )
