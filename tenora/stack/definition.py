"""Defines the programs of the one-machine stack with their settings; no other module knows all of them.

They are the embedded servers, one process of each part, and the one-time steps between them (migrations, the admin key,
publishing). Starting and restarting programs is in ``tenora.stack.supervisor``.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from pydantic import SecretStr

from billing.payments.settings import PaymentSettings
from billing.stripe.settings import StripeSettings
from control_plane import database_roles
from core import redis_acl, redis_keys
from core.settings import CorsSettings, S3Settings
from core.snapshot_signing import SnapshotSigner
from tenora.settings import StackSettings
from tenora.stack import embedded_servers
from tenora.stack.base_model import MODEL_ID
from tenora.stack.embedded_servers import Server
from tenora.stack.local_placer import ReplicaCopy, cores_of
from tenora.stack.program import Program, answers
from tenora.stack.secrets_file import Secrets
from tenora.stack.supervisor import DRAIN_ENDS_S

BUCKET = "tenora"
STRIPE_SIMULATOR = "stripe-simulator"
_SIMULATOR_KEY = "sk_test_stripe_simulator"
_GATEWAY_DRAIN_S = 10
_REPLICA_DRAIN_S = 610  # a request may run for 600 s
REPLICA_STOP_S = 60  # with the whole stack; no program has longer
_REPLICA_BACKOFF_MAX_S = 60  # a start takes a core from the replicas that serve
_REPLICA_START_S = 2 * 3600  # with the download of a large model; the agent bounds the start of the engine
_POSTGRES, _REDIS, _PEPPER = "TENORA_POSTGRES_DSN", "TENORA_REDIS_URL", "TENORA_KEY_PEPPER"
_S3_KEY, _S3_SECRET = "TENORA_S3_ACCESS_KEY", "TENORA_S3_SECRET_KEY"
_SALT, _ENGINE, _SIGNING = "TENORA_SALT_SECRET", "TENORA_ENGINE_KEY", "TENORA_SNAPSHOT_SIGNING_KEY"
_NOTIFICATIONS, _SMTP = "TENORA_NOTIFICATIONS_KEY", "TENORA_SMTP_PASSWORD"
_PROVIDERS = "TENORA_PROVIDER_SECRET"
_STRIPE_KEY, _STRIPE_WEBHOOK = "TENORA_STRIPE_API_KEY", "TENORA_STRIPE_WEBHOOK_SECRET"
_OTLP_HEADERS = "TENORA_OTLP_HEADERS"
_CONTROL_PLANE = (_POSTGRES, _REDIS, _PEPPER, _S3_KEY, _S3_SECRET)
_KNOWN_TO: Mapping[str, tuple[str, ...]] = {
    "migrate": (_POSTGRES,),
    "admin-key": (_POSTGRES, _PEPPER),
    "publish": (*_CONTROL_PLANE, _SIGNING),
    "web": (*_CONTROL_PLANE, _NOTIFICATIONS, _SMTP, _PROVIDERS, _STRIPE_WEBHOOK),
    "worker": (*_CONTROL_PLANE, _SIGNING),
    "fleet": (_POSTGRES, _REDIS),
    "batch": (_POSTGRES, _PEPPER, _S3_KEY, _S3_SECRET),
    "base-model": (),  # it reads the admin key's file
    "billing": (_POSTGRES, _REDIS, _NOTIFICATIONS, _SMTP, _STRIPE_KEY),
    "gateway": (_REDIS, _PEPPER, _SALT, _ENGINE, _PROVIDERS, _OTLP_HEADERS),
    "replica": (_REDIS, _S3_KEY, _S3_SECRET, _ENGINE),
    STRIPE_SIMULATOR: (_STRIPE_WEBHOOK,),
}
"""The secrets that each program needs."""
_SECRETS = (
    *_CONTROL_PLANE, _SALT, _ENGINE, _SIGNING, _NOTIFICATIONS, _PROVIDERS, _SMTP, _STRIPE_KEY, _STRIPE_WEBHOOK,
    _OTLP_HEADERS,
)  # fmt: skip
_POSTGRES_ROLES = {
    "admin-key": database_roles.WEB,
    "web": database_roles.WEB,
    "publish": database_roles.WORKER,
    "worker": database_roles.WORKER,
    "fleet": database_roles.WORKER,
    "batch": database_roles.WORKER,
    "billing": database_roles.BILLING,
}
"""The role of each program; the owner of the tables migrates."""
_REDIS_USERS = {
    "publish": redis_acl.WORKER,
    "web": redis_acl.WEB,
    "worker": redis_acl.WORKER,
    "fleet": redis_acl.WORKER,
    "billing": redis_acl.BILLING,
    "gateway": redis_acl.GATEWAY,
    "replica": redis_acl.REPLICA,
}
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """The addresses of the one-machine stack's parts."""

    gateway_url: str
    control_url: str
    s3_url: str
    postgres_dsn: str
    redis_url: str
    stripe_simulator_url: str


class Stack:
    """The programs and addresses, derived from settings, secrets and ports."""

    def __init__(self, settings: StackSettings, secrets: Secrets, ports: dict[str, int]) -> None:
        self.home = settings.root
        self.logs = self.home / "logs"
        self.admin_key_file = self.home / "admin-key"
        self.checkpoint = self.home / "models" / MODEL_ID
        self._settings = settings
        self._secrets = secrets
        self._ports = ports
        self._passwords = {
            redis_acl.WEB: secrets.web_password,
            redis_acl.WORKER: secrets.worker_password,
            redis_acl.GATEWAY: secrets.gateway_password,
            redis_acl.REPLICA: secrets.replica_password,
            redis_acl.BILLING: secrets.billing_password,
        }  # by user of Redis and role of Postgres, which have the same names
        self._valkey = embedded_servers.valkey(
            self.home / "valkey", self.logs, port=ports["valkey"],
            password=secrets.valkey_password, users=self._passwords,
        )  # fmt: skip
        self._s3 = embedded_servers.s3(
            self.home / "s3", self.logs, port=ports["s3"],
            access_key=secrets.s3_access_key, secret_key=secrets.s3_secret_key, bucket=BUCKET,
            cors_origins=(
                *CorsSettings().control_cors_origins,
                *(f"http://{host}:{settings.control_port}" for host in ("127.0.0.1", "localhost")),  # the console's
            ),
        )  # fmt: skip
        self.addresses = Addresses(
            gateway_url=f"http://127.0.0.1:{settings.gateway_port}",
            control_url=f"http://127.0.0.1:{settings.control_port}",
            s3_url=self._s3.url,
            postgres_dsn=self._postgres_dsn("postgres", secrets.postgres_password),
            redis_url=self._valkey.url,
            stripe_simulator_url=f"http://127.0.0.1:{ports['stripe_simulator']}",
        )
        self._simulates_stripe = StripeSettings().stripe_api_key is None

    def environment(self) -> dict[str, str]:
        """The settings that all parts share, as environment variables, with the secrets of the servers' owners."""
        return self._shared() | self._stripe() | self._secret_settings("") | self._stripe_secrets()

    def _environment_of(self, program: str) -> dict[str, str]:
        """The settings of one program, with only the secrets that it needs."""
        known = _KNOWN_TO[program]
        all_secrets = self._secret_settings(program) | self._stripe_secrets()
        secrets = {name: value for name, value in all_secrets.items() if name in known}
        stripe = self._stripe() if {_STRIPE_KEY, _STRIPE_WEBHOOK}.intersection(known) else {}
        return self._shared() | stripe | secrets

    def _shared(self) -> dict[str, str]:
        return {
            "TENORA_HOME": str(self.home),
            "TENORA_DEPLOYMENT": "one-machine",
            "TENORA_SNAPSHOT_PUBLIC_KEYS": SnapshotSigner(self._secrets.snapshot_signing_key).public_key,
            "TENORA_S3_ENDPOINT": self._s3.url,
            "TENORA_S3_BUCKET": BUCKET,
            "TENORA_S3_CHECKSUM_HEADER": "false",  # rclone verifies no checksums, and its CORS headers do not allow one
            "TENORA_GATEWAY_PORT": str(self._settings.gateway_port),
            "TENORA_CONTROL_PORT": str(self._settings.control_port),
            "TENORA_GATEWAY_URL": self.addresses.gateway_url,
            "TENORA_JOURNAL_DIR": str(self.home / "journal"),
            "TENORA_CACHE_DIR": str(self.home / "cache"),
            "TENORA_MODEL_CACHE_DIR": str(self.home / "model-cache"),
            "TENORA_ENGINE_RUN_DIR": str(self.home / "run"),
            "PYTHONUNBUFFERED": "1",
        }

    def _stripe(self) -> dict[str, str]:
        """Leads to the simulator unless the operator set a key of Stripe's. Its mode is for the web process, which gets
        no key. Owners of unpaid invoices are led to the operator's address of the control plane.
        """
        public = {"TENORA_CONTROL_PUBLIC_URL": PaymentSettings().control_public_url or self.addresses.control_url}
        if self._simulates_stripe:
            return public | {"TENORA_STRIPE_API_BASE": self.addresses.stripe_simulator_url}
        return public | {"TENORA_STRIPE_MODE": StripeSettings().mode}

    def _stripe_secrets(self) -> dict[str, str]:
        """The simulator accepts any test key. The operator's own secrets are inherited."""
        if not self._simulates_stripe:
            return {}
        return {_STRIPE_KEY: _SIMULATOR_KEY, _STRIPE_WEBHOOK: self._secrets.stripe_webhook_secret}

    def _secret_settings(self, program: str) -> dict[str, str]:
        """The settings that hold a secret, with the program's own role, user and key where it has one."""
        secrets = self._secrets
        role, user, reads_only = _POSTGRES_ROLES.get(program), _REDIS_USERS.get(program), program == "replica"
        return {
            _POSTGRES: self._postgres_dsn(role, self._passwords[role]) if role else self.addresses.postgres_dsn,
            _REDIS: self._redis_url(user) if user else self.addresses.redis_url,
            _S3_KEY: secrets.s3_read_access_key if reads_only else secrets.s3_access_key,
            _S3_SECRET: secrets.s3_read_secret_key if reads_only else secrets.s3_secret_key,
            _PEPPER: secrets.key_pepper,
            _NOTIFICATIONS: secrets.notifications_key,
            _PROVIDERS: secrets.provider_secret,
            _SALT: secrets.salt_secret,
            _ENGINE: secrets.engine_key,
            _SIGNING: secrets.snapshot_signing_key,
        }

    def _postgres_dsn(self, role: str, password: str) -> str:
        return f"postgresql+psycopg://{role}:{password}@127.0.0.1:{self._ports['postgres']}/tenora"

    def _redis_url(self, user: str) -> str:
        return f"redis://{user}:{self._passwords[user]}@127.0.0.1:{self._ports['valkey']}/0"

    def programs(self, copies: Sequence[ReplicaCopy] = ()) -> list[Program]:
        """All programs in reading order, the last of them ``copies`` of pools; ``needs`` decides the start order. Of
        the secrets that the operator has set, each inherits what it needs.
        """
        replicas = [*self._own_replicas(), *copies]
        others = [replace(program, withheld=_withheld(program.name)) for program in self._programs()]
        return others + [self._replica(number, replicas) for number in range(len(replicas))]

    def _programs(self) -> list[Program]:
        web_needs = ("admin-key", "valkey", "s3")
        return [
            self._postgres(),
            self._valkey.program,
            self._s3.program,
            self._s3_read().program,
            self._step("migrate", ("control_plane", "migrate"), needs=("postgres",)),
            self._step(
                "admin-key",
                ("control_plane", "bootstrap", "--admin-key-file", str(self.admin_key_file)),
                needs=("migrate",),
            ),
            self._step("publish", ("control_plane", "publish"), needs=("migrate", "valkey")),
            self._part(
                "web", ("control_plane", "web"), needs=web_needs, ready_url=f"{self.addresses.control_url}/readyz"
            ),
            self._part("worker", ("control_plane", "worker"), needs=web_needs),
            self._part("fleet", ("control_plane", "fleet"), needs=web_needs),
            self._part("batch", ("control_plane", "batch"), needs=("admin-key", "s3"), stop_s=20),
            self._step("base-model", ("tenora", "register-base-model"), needs=("web",)),
            self._part("billing", ("billing", "worker"), needs=("migrate", "valkey")),
            self._part(
                "gateway",
                ("data_plane", "gateway", "--workers", str(self._settings.gateway_workers)),
                needs=("publish",),
                ready_url=f"{self.addresses.gateway_url}/readyz",
                # The engine shares these cores, so a reservation may take longer than on separate machines.
                env={
                    "TENORA_GATEWAY_DRAIN_S": str(_GATEWAY_DRAIN_S),
                    "TENORA_RESERVE_DEADLINE_MS": "1000",
                    "TENORA_CONTROL_URL": self.addresses.control_url,
                },
                stop_s=_GATEWAY_DRAIN_S + 30,  # after the drain it aborts, counts and settles the running requests
            ),
            *([self._stripe_simulator()] if self._simulates_stripe else []),
        ]

    def _stripe_simulator(self) -> Program:
        url = self.addresses.stripe_simulator_url
        port = str(self._ports["stripe_simulator"])
        listener = f"{self.addresses.control_url}/webhooks/stripe"
        return Program(
            name=STRIPE_SIMULATOR,
            argv=self._command(
                "tenora.stripe_simulator", "--port", port, "--home", str(self.home / "stripe"), "--listener", listener
            ),
            env={"PYTHONUNBUFFERED": "1", "TENORA_STRIPE_WEBHOOK_SECRET": self._secrets.stripe_webhook_secret},
            log=self.logs / f"{STRIPE_SIMULATOR}.log",
            ready=lambda: answers(f"{url}/_simulator/status"),
        )

    def _postgres(self) -> Program:
        """Postgres, prepared only when it is about to run: the first call creates the database cluster."""
        server = embedded_servers.postgres(
            self.home / "postgres", self.logs, port=self._ports["postgres"], password=self._secrets.postgres_password,
            roles={role: self._passwords[role] for role in database_roles.ROLES},
        )  # fmt: skip
        return server.program

    def _s3_read(self) -> Server:
        """The endpoint of the replicas, which only read adapters."""
        secrets = self._secrets
        return embedded_servers.s3(
            self.home / "s3", self.logs, port=self._ports["s3_read"],
            access_key=secrets.s3_read_access_key, secret_key=secrets.s3_read_secret_key, bucket=BUCKET, read_only=True,
        )  # fmt: skip

    def _command(self, module: str, *arguments: str) -> tuple[str, ...]:
        return (sys.executable, "-m", module, *arguments)

    def _step(self, name: str, command: tuple[str, ...], *, needs: tuple[str, ...]) -> Program:
        return Program(
            name=name,
            argv=self._command(*command),
            env=self._environment_of(name),
            log=self.logs / f"{name}.log",
            needs=needs,
            ready=lambda: True,
            once=True,
        )

    def _part(
        self,
        name: str,
        command: tuple[str, ...],
        *,
        needs: tuple[str, ...],
        ready_url: str | None = None,
        env: Mapping[str, str] | None = None,
        stop_s: float = 15,
    ) -> Program:
        metrics_port = self._ports[f"{name}_metrics"]
        return Program(
            name=name,
            argv=self._command(*command),
            env={**self._environment_of(name), "TENORA_METRICS_PORT": str(metrics_port), **(env or {})},
            stop_s=stop_s,
            log=self.logs / f"{name}.log",
            needs=needs,
            ready=lambda: answers(ready_url or f"http://127.0.0.1:{metrics_port}/readyz"),
        )

    def _own_replicas(self) -> list[ReplicaCopy]:
        """Those of no pool."""
        return [
            ReplicaCopy(
                "replica",
                name,
                {
                    "TENORA_REPLICA_ID": f"rep_{number}",
                    "TENORA_BASE_MODEL": MODEL_ID,
                    "TENORA_MODEL_PATH": str(self.checkpoint),
                },
            )
            for number, name in enumerate(replica_names(self._settings.replicas), 1)
        ]

    def _replica(self, number: int, replicas: Sequence[ReplicaCopy]) -> Program:
        name = replicas[number].name
        metrics_port = self._ports[f"{name}_metrics"]
        environment = {
            **self.replica_environment(),
            **replicas[number].environment,
            "TENORA_REPLICA_COPY": name,
            "TENORA_METRICS_PORT": str(metrics_port),
            "TENORA_ENGINE_PORT": str(self._ports[f"{name}_engine"]),
            "TENORA_DRAIN_S": str(_REPLICA_DRAIN_S),
        }
        if len(replicas) > 1:  # vLLM's own choice is the same core in every process
            environment["VLLM_CPU_OMP_THREADS_BIND"] = cores_of(number, len(replicas), sorted(os.sched_getaffinity(0)))
        return Program(
            name=name,
            argv=self._command("data_plane", "replica"),
            env=environment,
            withheld=_withheld("replica"),
            log=self.logs / f"{name}.log",
            needs=("valkey", "s3-read"),
            after=tuple(replica.name for replica in replicas[:number] if replica.group == replicas[number].group),
            ready=lambda: has_started(metrics_port),
            ready_s=_REPLICA_START_S,
            backoff_max_s=_REPLICA_BACKOFF_MAX_S,
            stop_s=REPLICA_STOP_S,
            drain_s=_REPLICA_DRAIN_S + DRAIN_ENDS_S,
        )

    def replica_environment(self) -> dict[str, str]:
        """What all replicas of this stack share, with their secrets."""
        return self._environment_of("replica") | {"TENORA_S3_ENDPOINT": self._s3_read().url}

    def object_store(self) -> S3Settings:
        """The store of this stack, with the right to write."""
        return S3Settings(
            s3_endpoint=self._s3.url,
            s3_bucket=BUCKET,
            s3_access_key=self._secrets.s3_access_key,
            s3_secret_key=SecretStr(self._secrets.s3_secret_key),
        )

    def replicas(self) -> list[dict[str, object]]:
        """The published status of every live replica."""
        import redis  # late: few commands ask for it

        try:
            with redis.Redis.from_url(self.addresses.redis_url, socket_timeout=2) as client:
                names = [name.decode() for name in client.zrange(redis_keys.REPLICAS, 0, -1)]
                return [msgspec.json.decode(value) for name in names if (value := client.get(redis_keys.replica(name)))]
        except redis.RedisError:
            return []


def has_started(metrics_port: int) -> bool:
    """Whether a replica's start succeeded. A cordoned one drains from its start on: another start would not help."""
    return answers(f"http://127.0.0.1:{metrics_port}/readyz", accepted_error="it is draining")


def replica_names(replicas: int) -> list[str]:
    """The programs of so many replicas."""
    return ["replica", *(f"replica-{number}" for number in range(2, replicas + 1))]


def _withheld(program: str) -> frozenset[str]:
    """The secrets, and those before their rotation, that a program does not need."""
    unneeded = set(_SECRETS).difference(_KNOWN_TO.get(program, ()))
    return frozenset(unneeded | {f"{name}_PREVIOUS" for name in unneeded})
