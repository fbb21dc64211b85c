"""Which goals an idle stack misses."""

import pytest

from benchmarks.idle import findings


@pytest.mark.parametrize(
    ("cores", "missed"),
    [
        ({"engine: API server": 0.02, "engine: Worker": 0.02, "web": 0.05}, []),
        ({"engine: API server": 0.03, "engine: Worker": 0.03, "web": 0.01}, ["the engine at most 0.05 of a core"]),
        ({"engine: Worker": 0.01, "web": 0.03, "worker": 0.03}, ["everything else at most 0.05 of a core"]),
    ],
)
def test_the_engine_and_everything_else_have_a_goal_each(cores, missed):
    assert findings(cores)["missed"] == missed
