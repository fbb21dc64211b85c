"""Which requests a gateway traces, and where it sends the traces."""

import re
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr

from core.settings import Fragment, HttpUrl

_HEADER: Final = re.compile(r"\s*([A-Za-z0-9!#$%&'*+.^_`|~-]+)\s*=\s*([!-~]*)\s*")
_URL: Final = re.compile(r"[!-~]+")
_VALUE: Final = re.compile(r"[ -~]*")


def _require_host(url: str | None) -> str | None:
    if url is not None:
        parts = urlsplit(url)
        extra = parts.username is not None or parts.query or parts.fragment
        if not _URL.fullmatch(url) or not parts.hostname or extra or parts.port == 0:
            raise ValueError("it must be scheme://host[:port][/path]; credentials belong in TENORA_OTLP_HEADERS")
    return url


def headers_of(given: str) -> list[tuple[str, str]]:
    """The headers in ``name=value,name=value``, whose values may be percent-encoded, as
    https://opentelemetry.io/docs/specs/otel/protocol/exporter/ says. Raises ValueError, which shows no value.
    """
    headers = []
    for number, part in enumerate(filter(str.strip, given.split(",")), start=1):
        found = _HEADER.fullmatch(part)
        if found is None or not _VALUE.fullmatch(value := unquote(found[2])):
            raise ValueError(f"header {number} is not name=value in printable ASCII; percent-encode other characters")
        headers.append((found[1], value))
    return headers


def _require_headers(given: SecretStr) -> SecretStr:
    headers_of(given.get_secret_value())
    return given


class TraceSettings(Fragment):
    """Traces over OTLP. Off without an endpoint."""

    otlp_endpoint: Annotated[HttpUrl, AfterValidator(_require_host)] = Field(
        default=None,
        description="URL of an OpenTelemetry collector's OTLP receiver over HTTP, such as http://127.0.0.1:4318; the "
        "gateway appends /v1/traces. Empty: no traces.",
    )
    otlp_headers: Annotated[SecretStr, AfterValidator(_require_headers)] = Field(
        default=SecretStr(""),
        description="Headers for the collector, such as a token: name=value, separated by commas, percent-encoded, in "
        "the form of OTEL_EXPORTER_OTLP_HEADERS.",
    )
    otlp_interval_s: float = Field(default=5, gt=0, le=60, description="How often the gateway sends its traces.")
    otlp_timeout_s: float = Field(
        default=3,
        gt=0,
        le=10,
        description="How long the gateway tries to send its traces at a time, and at most how long they delay its "
        "shutdown.",
    )
    traces_waiting_max: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Traces of one gateway process that wait for the collector, of about 4 kB each. Further ones are "
        "dropped.",
    )
    traces_per_s_max: int = Field(
        default=50, ge=1, le=10_000, description="Traces that one gateway process makes each second, at most."
    )
    traces_of_callers_per_s_max: int = Field(
        default=5,
        ge=0,
        le=10_000,
        description="Of these, traces that callers choose by the sampled flag of their traceparent header.",
    )
    trace_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of the requests to trace that neither failed nor missed a target.",
    )
    trace_first_token_ms: int = Field(
        default=2000, ge=0, description="Target for a stream's first token; the gateway traces requests that miss it."
    )
    trace_itl_ms: int = Field(
        default=200,
        ge=0,
        description="Target for the 95th percentile of the pauses between a stream's tokens; the gateway traces "
        "requests that miss it.",
    )
