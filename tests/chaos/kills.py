"""SIGKILL of one process at a random instant under fifty streams, then what must be true. Seeds make it repeatable."""

import random
import time
from dataclasses import dataclass
from typing import Final

from tests.chaos.load import Load
from tests.chaos.platform import Platform
from tests.chaos.verdict import Verdict, emitted, judge

STREAMS: Final = 50
TOKENS: Final = 100  # of each stream, one every 20 ms
WINDOW_S: Final = 2.5  # in which the instant lies: from before the first token until after most ends
VICTIMS: Final = ("gateway", "replica", "valkey", "billing")
_NAMES: Final = {"gateway": "gw_one", "replica": "rep_one", "valkey": "valkey", "billing": "billing"}


@dataclass(frozen=True)
class Kill:
    """One process and one instant."""

    victim: str
    seed: int

    @property
    def instant_s(self) -> float:
        return random.Random(f"{self.victim}/{self.seed}").uniform(0, WINDOW_S)


def run(platform: Platform, kill: Kill, key: str) -> Verdict:
    """Kill, start again, let everything end, and judge what the streams of this run were billed."""
    before = frozenset(emitted(platform))
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=TOKENS)
    load = Load([platform.gateways[name] for name in ("gw_one", "gw_two")], key, STREAMS, max_tokens=TOKENS)
    time.sleep(kill.instant_s)
    name = _NAMES[kill.victim]
    platform.kill(name)
    platform.restart(name)
    if kill.victim == "replica":
        platform.witnesses[name].faults(output_tokens=TOKENS)
    return judge(platform, before, heard=load.join())
