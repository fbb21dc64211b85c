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

from core.contracts.routes import PROD
from tenora.demo.calls import Callers
from tenora.demo.report import table
from tenora.demo.tenants import Tenant, dataset

_CALLERS: Final = 4
_BETWEEN_MOVES_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Served:
    """One answered call: when it was sent, and the revision that its response names."""

    sent_at: float
    revision: str


@dataclass(frozen=True, kw_only=True)
class Move:
    """One move of the alias, from the PUT to its answer. The times are of the same clock as calls'."""

    to: str
    sent_at: float
    done_at: float
    acknowledged: bool
    gateways: int


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What one move showed: how many calls were sent between its answer and the next move, and how many of them were
    served by another revision than it moved to.
    """

    move: Move
    calls: int
    wrong: int


@dataclass
class Flip:
    """The calls and moves of one run, and what they show."""

    served: list[Served] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def shown(self) -> list[Shown]:
        """One entry a move, in their order."""
        ends = [*(move.sent_at for move in self.moves[1:]), float("inf")]
        found = []
        for move, end in zip(self.moves, ends, strict=False):  # no moves, no ends
            after = [each for each in self.served if move.done_at <= each.sent_at < end]
            found.append(Shown(move=move, calls=len(after), wrong=sum(each.revision != move.to for each in after)))
        return found

    def violations(self) -> list[str]:
        """What was promised of moves and did not hold, or was not shown since nobody called after one."""
        found = [] if self.moves else ["flip: the alias was never moved"]
        for number, shown in enumerate(self.shown(), start=1):
            if not shown.move.acknowledged:
                found.append(f"flip: move {number} was not acknowledged by every gateway")
            if not shown.calls:
                found.append(f"flip: no call came after move {number}, so it shows nothing")
            if shown.wrong:
                found.append(f"flip: {shown.wrong} of {shown.calls} calls after move {number} by the wrong revision")
        return found

    def as_report(self) -> dict[str, Any]:
        """For the demo's JSON."""
        shown = self.shown()
        return {
            "requests": len(self.served),
            "wrong_after_acknowledgement": sum(each.wrong for each in shown),
            "moves": [
                {
                    "to": each.move.to, "seconds": round(each.move.done_at - each.move.sent_at, 3),
                    "gateways": each.move.gateways, "calls_after": each.calls, "wrong": each.wrong,
                }
                for each in shown
            ],
        }  # fmt: skip


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
    tenant.control.put(f"{path}/aliases/{PROD}", {"revision": first})
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
    path = f"/api/v1/adapters/{tenant.adapter}/aliases/{PROD}"
    sent_at = time.monotonic()
    moved = await asyncio.to_thread(tenant.control.put, path, {"revision": revision})
    flip.moves.append(
        Move(
            to=revision, sent_at=sent_at, done_at=time.monotonic(), acknowledged=moved["acknowledged"],
            gateways=moved["gateways"],
        )
    )  # fmt: skip


def show_flip(console: Console, tenant: Tenant, flip: Flip) -> None:
    """One line a move."""
    console.print(
        table(
            f"{tenant.name}: {tenant.adapter}:{PROD} moves under traffic ({len(flip.served)} calls)",
            ["move", "acknowledged after", "by gateways", "calls after it", "served by the wrong revision"],
            [
                [
                    what, f"{each.move.done_at - each.move.sent_at:.2f} s", str(each.move.gateways), str(each.calls),
                    str(each.wrong),
                ]
                for what, each in zip(("flip", "rollback"), flip.shown(), strict=True)
            ],
        )
    )  # fmt: skip
