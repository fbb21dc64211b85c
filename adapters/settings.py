"""Settings of uploads, the object store client and the replicas' adapter cache. The limits of plans are not here."""

from pathlib import Path
from typing import Final

from pydantic import Field

from adapters.safetensors_header import HeaderBounds
from adapters.validation.bounds import PlatformBounds, WeightBounds
from core.settings import Fragment

_MIB: Final = 1024 * 1024

# What S3 allows in a multipart upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html).
PART_BYTES_MIN: Final = 5 * _MIB
PART_BYTES_MAX: Final = 5 * 1024 * _MIB
PARTS_MAX: Final = 10_000


class UploadSettings(Fragment):
    """Bounds of accepted uploads, and of the child process that validates them."""

    upload_header_bytes_max: int = Field(
        default=256 * 1024,
        ge=1024,
        le=16 * _MIB,
        description="Largest header of adapter_model.safetensors; an adapter for 126 layers needs 244 KB.",
    )
    upload_tensors_max: int = Field(default=4096, ge=2, le=65_536, description="Most tensors in one uploaded adapter.")
    upload_weight_max: float = Field(default=1e4, gt=0, description="Largest absolute value of a weight in an upload.")
    upload_update_norm_max: float = Field(
        default=1e5, gt=0, description="Largest |A|·|B|·scaling of one module in an upload."
    )
    upload_memory_bytes_max: int = Field(
        default=1024 * _MIB, ge=256 * _MIB, description="Address space of the process that validates an upload."
    )
    upload_cpu_s_max: int = Field(
        default=120, ge=1, le=3600, description="CPU seconds of the process that validates an upload."
    )
    upload_validation_timeout_s: float = Field(
        default=180, gt=0, le=3600, description="Wall time for the validation of one upload."
    )
    upload_user_id: int = Field(
        default=65_533,
        ge=1,
        le=4_294_967_294,
        description="User and group id of the validating process if the worker is root. Choose one that owns no files.",
    )
    upload_open_files_max: int = Field(
        default=64, ge=16, le=1024, description="Most open files of the process that validates an upload."
    )
    upload_answer_bytes_max: int = Field(
        default=_MIB, ge=64 * 1024, description="Longest answer of the process that validates an upload."
    )
    upload_work_dir: Path | None = Field(
        default=None, description="Folder in which uploads are validated; the system's temporary folder if unset."
    )
    upload_part_bytes: int = Field(
        default=16 * _MIB,
        ge=PART_BYTES_MIN,
        le=PART_BYTES_MAX,
        description="Files above this size are uploaded in parts of it; parts grow if there would be too many.",
    )
    upload_parts_max: int = Field(
        default=1000, ge=1, le=PARTS_MAX, description="Most parts in which one file is uploaded."
    )
    upload_url_expires_s: int = Field(
        default=3600,
        ge=120,  # URLs that expire within a minute are not issued
        le=604_800,
        description="Lifetime of a revision's presigned upload URLs, from its creation.",
    )

    def bounds(self) -> PlatformBounds:
        """The bounds that the child needs, in types without this module's imports."""
        return PlatformBounds(
            header=HeaderBounds(header_bytes=self.upload_header_bytes_max, tensors=self.upload_tensors_max),
            weights=WeightBounds(magnitude=self.upload_weight_max, update_norm=self.upload_update_norm_max),
        )


class StoreSettings(Fragment):
    """Timeouts, attempts and parallelism of the S3 client."""

    store_connect_timeout_s: float = Field(default=5, gt=0, le=60, description="Timeout to open a connection to S3.")
    store_read_timeout_s: float = Field(
        default=30, gt=0, le=600, description="Timeout between two reads of an S3 response."
    )
    store_attempts_max: int = Field(
        default=4, ge=1, le=10, description="Most attempts of one S3 call, including the first."
    )
    store_connections_max: int = Field(
        default=64, ge=1, le=256, description="Size of one process's connection pool to S3."
    )
    store_stall_timeout_s: float = Field(
        default=5,
        gt=0,
        le=600,
        description="Timeout between two reads of an object's body; after it the rest is requested again.",
    )
    store_part_bytes: int = Field(
        default=8 * _MIB, ge=64 * 1024, description="Objects above this size are downloaded in ranges of it."
    )
    store_parts_parallel: int = Field(
        default=4, ge=1, le=32, description="Most ranges of one object that are downloaded in parallel."
    )
    store_slow_part_s: float = Field(
        default=2,
        gt=0,
        le=600,
        description="A range slower than this and than four times the median range is requested again, once.",
    )


class CacheSettings(Fragment):
    """The adapter cache on a replica's disk."""

    cache_dir: Path = Field(
        default=Path(".tenora/adapter-cache"), description="Folder of a replica's adapter cache. Use a fast disk."
    )
    cache_bytes: int = Field(
        default=20 * 1024 * _MIB,
        ge=_MIB,
        description="Size budget of the adapter cache; the least recently used adapters are evicted first.",
    )
    cache_free_bytes_min: int = Field(
        default=512 * _MIB,
        ge=0,
        description="A download that would leave less free disk space than this is refused.",
    )
    cache_age_max_s: float = Field(
        default=7 * 86_400,
        gt=0,
        description="At start, adapters that were unused for longer than this are removed from the adapter cache.",
    )
    cache_downloads_max: int = Field(
        default=8,
        ge=1,
        le=64,
        description="Adapters that one replica downloads at a time, not counting stalled downloads.",
    )
    cache_tenant_downloads_max: int = Field(
        default=3,
        ge=1,
        le=64,
        description="Most simultaneous adapter downloads of one tenant (of one adapter if the tenant is unknown).",
    )
    cache_stall_s: float = Field(
        default=1,
        gt=0,
        le=60,
        description="An adapter download that received nothing for this long lends its slot to others.",
    )
    cache_stalled_downloads_max: int = Field(
        default=24, ge=0, le=256, description="Most stalled adapter downloads that may run in addition to the others."
    )
    cache_waiting_max: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description="Most adapter downloads that may wait for a slot; more are refused at once.",
    )
    cache_tenant_waiting_max: int = Field(
        default=128, ge=1, le=100_000, description="Most adapter downloads of one tenant that may wait for a slot."
    )
    cache_download_timeout_s: float = Field(
        default=120, gt=0, le=3600, description="Timeout for the download of one adapter."
    )
    cache_retry_after_max_s: float = Field(
        default=30, ge=1, le=3600, description="Longest Retry-After in the answer for an adapter that is still loading."
    )
    cache_circuit_open_s: float = Field(
        default=1, gt=0, le=60, description="First open period of the circuit breaker to S3; it doubles up to 30 s."
    )


class ModelCacheSettings(Fragment):
    """The base weights on a replica's disk."""

    model_cache_dir: Path = Field(
        default=Path(".tenora/model-cache"),
        description="Folder for base weights that replicas of this machine download and share.",
    )
    model_cache_bytes: int = Field(
        default=200 * 1024 * _MIB,
        ge=_MIB,
        description="Size budget of that folder; weights that no replica uses are removed, the longest unused first.",
    )
