"""How many replicas of each revision a pool should have next. Pure.

A rollout starts one replica of the revision in force more than there are old ones to replace, waits until it is ready,
and then gives up an old one. A new replica that fails is never ready, so the old ones stay: nothing has to notice that
the rollout has halted. Going back is the same, with an older revision in force.
"""

from collections import Counter
from collections.abc import Mapping


def next_counts(target: int, in_force: int, wanted: Mapping[int, int], ready: Mapping[int, int]) -> dict[int, int]:
    """Replicas by revision number, none of them 0. ``target`` is how many the pool should have when the rollout is
    over, ``wanted`` what placers were last asked for, and ``ready`` how many replicas of each revision serve.
    """
    old = {number: count for number, count in wanted.items() if number != in_force and count > 0}
    if not old:
        return {in_force: target} if target else {}
    served = min(ready.get(in_force, 0), target)
    left = min(target - served, sum(old.values()))
    counts = Counter({in_force: min(target, max(served + 1, wanted.get(in_force, 0)))})  # a replica may only be slow
    newest_first = sorted(old, reverse=True)
    serving = {number: min(old[number], ready.get(number, 0)) for number in newest_first}
    for number, count in (*serving.items(), *((number, old[number] - serving[number]) for number in newest_first)):
        counts[number] += min(count, left)  # those that serve stay before those that start or fail
        left -= min(count, left)
    return {number: count for number, count in counts.items() if count}
