"""Locks of run folders: whose id a folder has, and what is removed of dead agents."""

import contextlib
import shutil

import pytest

from core.ids import new_id
from data_plane.engine.agent.status_publisher import ReplicaIdTaken, locked_run_dir
from data_plane.engine.settings import ReplicaSettings
from tests.fixtures import processes
from tests.fixtures.snapshot_keys import PUBLIC_KEYS


def replica(folder, replica_id: str) -> ReplicaSettings:
    return ReplicaSettings(
        model_path="/", replica_id=replica_id, engine_run_dir=folder, engine_key=processes.ENGINE_KEY,
        snapshot_public_keys=PUBLIC_KEYS,
    )  # fmt: skip


def test_a_folder_keeps_its_id_and_a_copy_has_another_one(tmp_path):
    folder, copied = tmp_path / "run", tmp_path / "copied"
    with locked_run_dir(replica(folder, "rep_one")) as run_dir_id, pytest.raises(ReplicaIdTaken, match="another"):
        locked_run_dir(replica(folder, "rep_one")).__enter__()
    with locked_run_dir(replica(folder, "rep_one")) as again:
        assert again == run_dir_id
    shutil.copytree(folder, copied)
    with locked_run_dir(replica(copied, "rep_one")) as another:
        assert another != run_dir_id


def test_a_start_removes_what_dead_agents_with_generated_ids_left_and_nothing_else(tmp_path):
    dead, alive, starting = new_id("rep"), new_id("rep"), new_id("rep")
    with contextlib.ExitStack() as running:
        for replica_id in (dead, "rep_named", alive):
            with contextlib.ExitStack() as held:
                held.enter_context(locked_run_dir(settings := replica(tmp_path, replica_id)))
                settings.run_dir.mkdir()
                (settings.run_dir / "residency.json").touch()
                if replica_id == alive:
                    running.push(held.pop_all())
        running.enter_context(locked_run_dir(replica(tmp_path, starting)))
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"replicas.lock", alive, f"{alive}.lock", "rep_named", "rep_named.lock", f"{starting}.lock"}
