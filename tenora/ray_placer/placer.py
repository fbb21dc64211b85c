"""Keeps on a Ray cluster what the fleet process wants: one Serve application for each pool revision, which Serve never
scales by itself. It decides nothing, and an entry that is missing changes nothing.

Applications are made and scaled again in every round until Serve has what is wanted, so a round that fails, a new
controller and a new placer need no memory of the last one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import httpx
import structlog
from redis import Redis

from core import redis_keys
from core.contracts.fleet import WantedPool, WantedRevision, read_wanted
from tenora.ray_placer.replica import RayReplica
from tenora.ray_placer.settings import RayPlacerSettings

DEPLOYMENT: Final = "replica"
_PREFIX: Final = "tenora-"
_HEALTH_S: Final = 2.0  # how soon Serve learns that a replica has ended
_STOP_S: Final = 30.0  # after its drain, a replica sends its last counts and stops its engine
_TIMEOUT_S: Final = 10.0
_STOPS: Final = "STOPPING"
_log: Final = structlog.get_logger()


def application(pool: str, number: int) -> str:
    """The name of a revision's application. Pools have no dots."""
    return f"{_PREFIX}{pool}.{number}"


def surplus(pool: WantedPool, applications: Iterable[str]) -> list[str]:
    """The applications of this pool's revisions that are no longer wanted."""
    wanted = {application(pool.pool, revision.number) for revision in pool.revisions}
    return [name for name in applications if name.rpartition(".")[0] == f"{_PREFIX}{pool.pool}" and name not in wanted]


class RayPlacer:
    """One placer of a cluster to which this process is connected. ``command`` starts a replica on a node."""

    def __init__(
        self,
        redis: Redis,
        settings: RayPlacerSettings,
        command: Sequence[str],
        *,
        dashboard_url: str,
        token: Callable[[], Mapping[str, str]],
    ) -> None:
        self._redis = redis
        self._settings = settings
        self._command = tuple(command)
        self._dashboard_url = dashboard_url
        self._token = token
        self._messages: dict[str, str] = {}

    def run_once(self) -> bool:
        """Bring the cluster one step closer to what is wanted. Returns False: replicas take seconds."""
        found = cast("dict[bytes, bytes]", self._redis.hgetall(redis_keys.FLEET_WANTED))
        pools = [pool for pool in map(read_wanted, found.values()) if pool is not None]
        if pools:
            self._place(pools)
        return False

    def _place(self, pools: Sequence[WantedPool]) -> None:
        from ray import serve

        applications = serve.status().applications
        copies = {name: _copies(each) for name, each in applications.items()}
        self._log_messages({name: _message(each) for name, each in applications.items()})
        for pool in pools:
            for revision in pool.revisions:
                name = application(pool.pool, revision.number)
                if name not in copies:
                    if revision.replicas:  # Serve makes no application without copies
                        self._create(name, revision)
                elif copies[name].total() - copies[name][_STOPS] != revision.replicas:
                    self._scale(name, revision.replicas)
            for name in surplus(pool, copies):
                if copies[name].total() == 0:
                    serve.delete(name, _blocking=False)
                    _log.info("application deleted", application=name)
                elif copies[name].total() > copies[name][_STOPS]:
                    self._scale(name, 0)

    def _log_messages(self, messages: dict[str, str]) -> None:
        """What Serve says of an application, once: that no node has room for a copy, for example."""
        for name, message in messages.items():
            if message and message != self._messages.get(name):
                _log.warning("ray serve says", application=name, message=message[:500])
        self._messages = messages

    def _create(self, name: str, revision: WantedRevision) -> None:
        from ray import serve

        resources = dict(self._settings.ray_resources)
        deployment = serve.deployment(
            RayReplica,
            name=DEPLOYMENT,
            num_replicas=revision.replicas,
            ray_actor_options=_actor_options(resources),
            placement_group_bundles=[resources],
            graceful_shutdown_timeout_s=self._settings.drain_s + _STOP_S,
            health_check_period_s=_HEALTH_S,
        )
        target = serve.RunTarget(
            deployment.bind(self._command, revision.environment),
            name=name,
            route_prefix=None,
            external_scaler_enabled=True,
        )
        serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
        _log.info("application created", application=name, replicas=revision.replicas)

    def _scale(self, name: str, replicas: int) -> None:
        """Serve's own interface for a scaler from outside, which is one of HTTP alone."""
        url = f"{self._dashboard_url}/api/v1/applications/{name}/deployments/{DEPLOYMENT}/scale"
        body = {"target_num_replicas": replicas}
        answer = httpx.post(url, json=body, headers=self._token(), timeout=_TIMEOUT_S)
        if answer.status_code != 200:
            raise OSError(f"Ray refused to scale with status {answer.status_code}: {answer.text[:300]}")
        _log.info("application scaled", application=name, replicas=replicas)


def _copies(status: Any) -> Counter[str]:
    """The copies of an application by Serve's states of them."""
    deployment = status.deployments.get(DEPLOYMENT)
    return Counter() if deployment is None else Counter(dict(deployment.replica_states))


def _message(status: Any) -> str:
    deployment = status.deployments.get(DEPLOYMENT)
    return "" if deployment is None else str(deployment.message)


def _actor_options(resources: dict[str, float]) -> dict[str, Any]:
    """The actor takes all of its placement group."""
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "resources": others}
