"""A flip and a rollback under traffic: the shop moves its alias ``prod`` to another revision and back during calls.

After a move is acknowledged, no call may be served by the wrong revision.
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
from tenora.demo.fine_tunes import dataset
from tenora.demo.report import table
from tenora.demo.tenants import Tenant

_CALLERS: Final = 4
_BETWEEN_MOVES_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Served:
    """One answered call: its send time, and the revision that its response names."""

    sent_at: float
    revision: str


@dataclass(frozen=True, kw_only=True)
class Move:
    """One move of the alias, from the PUT to its response. Times use the same clock as the calls."""

    to: str
    sent_at: float
    done_at: float
    acknowledged: bool
    gateways: int


@dataclass(frozen=True, kw_only=True)
class MoveResult:
    """The calls sent between one move's response and the next move, and the number served by a wrong revision."""

    move: Move
    calls: int
    wrong: int


@dataclass
class Flip:
    """The calls and moves of one run, and their evaluation."""

    served: list[Served] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def results(self) -> list[MoveResult]:
        """One result per move, in order."""
        ends = [*(move.sent_at for move in self.moves[1:]), float("inf")]
        found = []
        for move, end in zip(self.moves, ends, strict=False):  # no moves, no ends
            after = [each for each in self.served if move.done_at <= each.sent_at < end]
            found.append(MoveResult(move=move, calls=len(after), wrong=sum(each.revision != move.to for each in after)))
        return found

    def violations(self) -> list[str]:
        """Descriptions of wrong or unacknowledged moves, and of moves that no call followed."""
        found = [] if self.moves else ["flip: the alias was never moved"]
        for number, result in enumerate(self.results(), start=1):
            if not result.move.acknowledged:
                found.append(f"flip: move {number} was not acknowledged by every gateway")
            if not result.calls:
                found.append(f"flip: no call came after move {number}, so it shows nothing")
            if result.wrong:
                found.append(f"flip: {result.wrong} of {result.calls} calls after move {number} by the wrong revision")
        return found

    def as_report(self) -> dict[str, Any]:
        """The values for the demo's JSON report."""
        results = self.results()
        return {
            "requests": len(self.served),
            "wrong_after_acknowledgement": sum(each.wrong for each in results),
            "moves": [
                {
                    "to": each.move.to, "seconds": round(each.move.done_at - each.move.sent_at, 3),
                    "gateways": each.move.gateways, "calls_after": each.calls, "wrong": each.wrong,
                }
                for each in results
            ],
        }  # fmt: skip


def weaker_copy(folder: Path, into: Path) -> Path:
    """Copy the adapter at half its strength, to have a second revision without a second training."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(folder, into)
    path = into / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "lora_alpha": config["lora_alpha"] / 2}))
    return into


def upload_two_revisions(tenant: Tenant, folder: Path) -> tuple[str, str]:
    """Upload a weaker revision beside the first one, which ``prod`` still serves; returns both ids."""
    first: str = tenant.control.get(f"/api/v1/adapters/{tenant.adapter}")["serves"]
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
    prompts = [example.prompt for example in tenant.task.load(dataset(tenant.task), "heldout")]
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
    """Print a table with one line per move."""
    console.print(
        table(
            f"{tenant.name}: {tenant.adapter}:{PROD} moves under traffic ({len(flip.served)} calls)",
            ["move", "acknowledged after", "by gateways", "calls after it", "served by the wrong revision"],
            [
                [
                    what, f"{each.move.done_at - each.move.sent_at:.2f} s", str(each.move.gateways), str(each.calls),
                    str(each.wrong),
                ]
                for what, each in zip(("flip", "rollback"), flip.results(), strict=True)
            ],
        )
    )  # fmt: skip
