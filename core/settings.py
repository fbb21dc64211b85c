"""The settings that two or more processes share, read once from the environment (``TENORA_…``) and then frozen.

A process's own settings class composes them; no other module reads the environment. A missing or invalid variable ends
every program with one line that names it.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from core.errors import InvalidSettings

_INVALID_EXIT: Final = 2  # as for a wrong argument
_UNIT_MS: Final = {"ms": 1, "s": 1000}
_ORIGIN: Final = re.compile(r"https?://([a-z0-9.\-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")


def split_commas(given: object) -> object:
    """The items of a text that commas separate, without spaces around them; any other value as it is."""
    return tuple(each.strip() for each in given.split(",") if each.strip()) if isinstance(given, str) else given


def _exact(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} is no origin: write scheme://host[:port] in lower case, without a path")
    return origins


Origins = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(split_commas), AfterValidator(_exact), Field(default=(), max_length=32)
]
"""Origins of pages in browsers, such as https://console.example.com; separated by commas in the environment."""


def secret_bytes(*secrets: SecretStr | None) -> tuple[bytes, ...]:
    """The secrets that are set, in their order: the current one, and the one before a rotation."""
    return tuple(each.get_secret_value().encode() for each in secrets if each is not None)


class Fragment(BaseSettings):
    """A frozen group of ``TENORA_``-prefixed variables. Raises InvalidSettings, which shows no secret."""

    model_config = SettingsConfigDict(env_prefix="TENORA_", frozen=True, extra="ignore")

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise InvalidSettings(*map(self._problem, error.errors())) from None

    @classmethod
    def _problem(cls, error: ErrorDetails) -> str:
        text = error["msg"].removeprefix("Value error, ")
        if not error["loc"] or text.startswith("TENORA_"):  # a validator of ours that names its variables
            return text
        name = str(error["loc"][0])
        field, variable = cls.model_fields[name], f"TENORA_{name.upper()}"
        if error["type"] == "missing":
            return f"{variable} is not set: {field.description}"
        if error["type"] == "value_error":
            return f"{variable}: {text.removesuffix('.')}. {field.description}"
        secret = SecretStr in (field.annotation, *get_args(field.annotation))
        found = "is invalid" if secret else f"is '{error['input']}'"
        wanted = re.sub(r", (unable|not) .*| after validation", "", text).replace("items", "characters")
        return f"{variable} {found}: {re.sub(r'^[A-Z][a-z]+ should ', 'it must ', wanted)}. {field.description}"

    def require_shorter(self, interval: str, timeout: str) -> None:
        """Raise a ValueError that names both settings unless the interval is shorter than the timeout.

        Each value is in the unit that ends its setting's name: ``_ms`` or ``_s``.
        """
        (interval_text, interval_ms), (timeout_text, timeout_ms) = self._duration(interval), self._duration(timeout)
        if interval_ms >= timeout_ms:
            raise ValueError(
                f"{interval_text}, {timeout_text}: the first must be shorter. Lower the first or raise the second."
            )

    def _duration(self, name: str) -> tuple[str, float]:
        value, unit = getattr(self, name), name.rpartition("_")[2]
        return f"TENORA_{name.upper()} is {value:g} {unit}", value * _UNIT_MS[unit]


def check_settings(*kinds: type[Fragment]) -> None:
    """Read all settings of a process. Raises one InvalidSettings that names the problems of all ``kinds``."""
    problems: list[str] = []
    for kind in kinds:
        try:
            kind()
        except InvalidSettings as error:
            problems += error.problems
    if problems:
        raise InvalidSettings(*dict.fromkeys(problems))


@contextmanager
def exit_on_invalid_settings() -> Iterator[None]:
    """Around all that a program does: an InvalidSettings ends it with status 2 and its lines on standard error."""
    try:
        yield
    except InvalidSettings as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_INVALID_EXIT)


def _with_scheme(*schemes: str) -> AfterValidator:
    """An address with one of these schemes. The message does not show the address, which may hold a password."""

    def check(given: str) -> str:
        if urlsplit(given).scheme not in schemes:
            raise ValueError(f"it must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return given

    return AfterValidator(check)


HttpUrl = Annotated[Annotated[str, _with_scheme("http", "https")] | None, BeforeValidator(lambda given: given or None)]


class DeploymentSettings(Fragment):
    """Whether this is an installation for real tenants. Settings that weaken protection are refused in production."""

    deployment: Literal["production", "one-machine"] = Field(
        default="production",
        description="production, or one-machine for a trial on loopback, which `tenora up` sets. Only one-machine "
        "allows settings that weaken protection.",
    )


class RedisSettings(Fragment):
    """Redis or Valkey: snapshots, quotas, replica status and the usage stream."""

    redis_url: Annotated[str, _with_scheme("redis", "rediss", "unix")] = Field(
        default="redis://127.0.0.1:6379/0",
        description="URL of Redis or Valkey, with AOF on. TLS: rediss://…?ssl_ca_certs=FILE.",
    )


class PostgresSettings(Fragment):
    """The only SQL dialect."""

    postgres_dsn: Annotated[str, _with_scheme("postgresql+psycopg")] = Field(
        default="postgresql+psycopg://postgres@127.0.0.1:5432/tenora",
        description="SQLAlchemy URL of Postgres 15 or later. TLS: …?sslmode=verify-full&sslrootcert=FILE.",
    )
    postgres_pool_max: int = Field(default=10, ge=1, le=200, description="Connections one process may hold.")


class S3Settings(Fragment):
    """Where uploads and adapters lie."""

    s3_endpoint: HttpUrl = Field(default=None, description="Endpoint URL; empty for AWS itself.")
    s3_public_endpoint: HttpUrl = Field(
        default=None,
        description="Endpoint URL in tenants' upload URLs, if tenants need another address than Tenora does.",
    )
    s3_checksum_header: bool = Field(
        default=True,
        description="Whether uploads must send a SHA-256 header, which AWS verifies. Off if CORS cannot allow it.",
    )
    s3_region: str = Field(default="us-east-1", description="Region used in signatures.")
    s3_bucket: str = Field(
        default="tenora", description="One bucket for uploads/, adapters/, base_models/, requests/ and files/."
    )
    s3_access_key: str = Field(default="", description="Access key id; empty uses the machine's own role.")
    s3_secret_key: SecretStr = Field(default=SecretStr(""), description="Secret access key.")


class CorsSettings(Fragment):
    """Which other sites a browser lets call the control plane and upload to the bucket."""

    control_cors_origins: Origins = Field(
        default=(),
        description="Origins whose pages may call the API and upload, such as https://console.example.com; by commas.",
    )


class PublicUrlSettings(Fragment):
    """Where people reach the control plane."""

    control_public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*[^\s/?#])?$",
        description="Address of the control plane and its console as tenants reach it, such as "
        "https://tenora.example.com, or https://example.com/tenora below a path that a proxy removes. Mails about "
        "unpaid invoices and invitations lead to it. Required where TENORA_STRIPE_API_KEY is set.",
    )


class KeySettings(Fragment):
    """The secret that API keys are hashed with."""

    key_pepper: SecretStr = Field(
        min_length=16, description="HMAC secret for API keys; losing it invalidates every key."
    )
    key_pepper_previous: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="The secret before a rotation. Keys that were made with it stay valid as long as it is set.",
    )

    @property
    def peppers(self) -> tuple[bytes, ...]:
        """The secrets with which a key may have been hashed, the current one first."""
        return secret_bytes(self.key_pepper, self.key_pepper_previous)


class EngineKeySettings(Fragment):
    """The secret between gateways and engines."""

    engine_key: SecretStr = Field(
        min_length=16, description="Key that gateways show to engines; engines refuse everyone else."
    )
    engine_key_previous: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="The key before a rotation. Engines accept it too, until every gateway shows the new one.",
    )


class TelemetrySettings(Fragment):
    """Logs and metrics of one process."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda given: given.lower() if isinstance(given, str) else given),
    ] = Field(default="info", description="Lowest level of the log events that are written.")
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address on which the process serves `/metrics`, `/livez` and `/readyz`, without a key: loopback "
        "or an address of a private network.",
    )
    metrics_port: int = Field(default=0, ge=0, le=65535, description="Port of metrics and probes; 0 serves none.")
