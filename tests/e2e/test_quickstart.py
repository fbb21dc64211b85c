"""The README's quickstart, run as a reader pastes it: the commands come from the page itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.base_model_spec import describe
from tenora.stack.base_model import HUB_NAME, MODEL_ID
from tests.fixtures.uploads.peft_adapters import write_adapter

pytestmark = [pytest.mark.e2e]
REPOSITORY = Path(__file__).parents[2]
BLOCKS = dict(
    re.findall(r"<!-- quickstart: (\w+) -->\n```sh\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
)


def paste(platform, folder: Path, *names: str) -> str:
    """Standard output of the named blocks in one shell, in a folder that looks like a checkout."""
    for name, target in (
        (".venv", Path(sys.prefix)),
        ("examples", REPOSITORY / "examples"),
        (".tenora", REPOSITORY / ".tenora"),
    ):
        (folder / name).symlink_to(target)
    script = "set -euo pipefail\n" + "\n".join(BLOCKS[name] for name in names)
    environment = {**platform.environment, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quickstart_ends_with_an_answer_of_the_uploaded_adapter(platform, checkpoint, tmp_path):
    """With random weights in place of the minute of training, which `make soak` and `make demo` run."""
    write_adapter(
        tmp_path / "my-adapter", describe(checkpoint, id=MODEL_ID, hub_name=HUB_NAME), rank=8, seed=5, scale=0.1
    )
    shown = paste(platform, tmp_path, "platform", "tenant", "call")
    assert '"model":"shop-voice"' in shown
    assert '"tokens_per_minute":100000' in shown, "the quota of the plan that was made"


def test_the_quickstart_has_about_ten_commands():
    commands = [line for line in "".join(BLOCKS.values()).splitlines() if re.match(r"[\w.$]", line)]
    assert set(BLOCKS) == {"platform", "tenant", "train", "call"}
    assert len(commands) <= 13, commands
