"""The process that runs batches: ``python -m control_plane batch``. Several of them may run; one sends lines at a time.
Without any, batches wait and everything else goes on.
"""

from functools import partial

from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from control_plane.batches import files
from control_plane.batches.ending import end_one
from control_plane.batches.sending import GatewayClient
from control_plane.batches.settings import BatchWorkerSettings
from control_plane.batches.validator import check_one
from control_plane.batches.worker import BatchWorker
from control_plane.loop_process import run_until_signal
from control_plane.settings import BatchSettings
from core import db
from core.loops import Loop
from core.settings import KeySettings, PostgresSettings, S3Settings

_LOOK_S = 0.25
_IDLE_S = 2.0  # a deadline, a revoked key, or the end of another process
_CLEANUP_S = 60.0
_REMOVED_AT_ONCE = 100
_STOP_S = 15.0


def run() -> int:
    """Run batches until a signal. Returns the exit status."""
    settings, limits = BatchWorkerSettings(), BatchSettings()
    engine = db.connect(PostgresSettings())
    bucket = Bucket(S3Settings(), StoreSettings())
    client = GatewayClient(settings, KeySettings().peppers[0])
    worker = BatchWorker(engine, bucket, client.send, settings, limits)
    loops = [
        Loop("batch-lines", worker.run_once, _LOOK_S, _IDLE_S),
        Loop("batch-validation", partial(check_one, engine, bucket, limits), _LOOK_S, _IDLE_S),
        Loop("batch-ending", partial(end_one, engine, bucket, limits), _LOOK_S, _IDLE_S),
        Loop("batch-files", partial(files.remove_unused, engine, bucket, limit=_REMOVED_AT_ONCE), _CLEANUP_S),
    ]
    return run_until_signal(loops, engine, look_s=_LOOK_S, stop_s=_STOP_S)
