"""What operators may set about uploads, the object store and the replicas' disk cache. Plans' limits are not here."""

from pathlib import Path
from typing import Final

from pydantic import Field

from adapters.safetensors_header import HeaderBounds
from adapters.validation.validate import PlatformBounds
from adapters.validation.weight_rules import WeightBounds
from core.settings import Fragment

_MIB: Final = 1024 * 1024

# What S3 allows in a multipart upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html).
PART_BYTES_MIN: Final = 5 * _MIB
PART_BYTES_MAX: Final = 5 * 1024 * _MIB
PARTS_MAX: Final = 10_000


class UploadSettings(Fragment):
    """PlatformBounds of what is accepted, and of the child that looks at it."""

    upload_header_bytes_max: int = Field(
        default=256 * 1024,
        ge=1024,
        le=16 * _MIB,
        description="Header of adapter_model.safetensors; 126 layers need 244 KB.",
    )
    upload_tensors_max: int = Field(default=4096, ge=2, le=65_536, description="Tensors in one adapter.")
    upload_weight_max: float = Field(default=1e4, gt=0, description="Largest absolute weight accepted.")
    upload_update_norm_max: float = Field(default=1e5, gt=0, description="Largest |A|·|B|·scaling of one module.")
    upload_memory_bytes_max: int = Field(
        default=1024 * _MIB, ge=256 * _MIB, description="Address space of the validating child."
    )
    upload_cpu_s_max: int = Field(default=120, ge=1, le=3600, description="Processor seconds of the validating child.")
    upload_validation_timeout_s: float = Field(
        default=180, gt=0, le=3600, description="Wall time of the validating child."
    )
    upload_user_id: int = Field(
        default=65_533,
        ge=1,
        le=4_294_967_294,
        description="User and group of the validating child where the worker is root; one that owns nothing.",
    )
    upload_open_files_max: int = Field(default=64, ge=16, le=1024, description="Open files of the validating child.")
    upload_answer_bytes_max: int = Field(default=_MIB, ge=64 * 1024, description="Bytes the child may answer with.")
    upload_work_dir: Path | None = Field(
        default=None, description="Where uploads are unpacked; the system's default if unset."
    )
    upload_part_bytes: int = Field(
        default=16 * _MIB,
        ge=PART_BYTES_MIN,
        le=PART_BYTES_MAX,
        description="Larger files are uploaded in parts of this size; of more where there would be too many.",
    )
    upload_parts_max: int = Field(default=1000, ge=1, le=PARTS_MAX, description="Parts one file is uploaded in.")
    upload_url_expires_s: int = Field(
        default=3600,
        ge=120,  # what is good for less than a minute is not given out
        le=604_800,
        description="How long after its announcement a revision's presigned upload URLs hold.",
    )

    def bounds(self) -> PlatformBounds:
        """The part that the child needs, without this module's imports."""
        return PlatformBounds(
            header=HeaderBounds(header_bytes=self.upload_header_bytes_max, tensors=self.upload_tensors_max),
            weights=WeightBounds(magnitude=self.upload_weight_max, update_norm=self.upload_update_norm_max),
        )


class StoreSettings(Fragment):
    """How patient the S3 client is."""

    store_connect_timeout_s: float = Field(default=5, gt=0, le=60, description="To open a connection to S3.")
    store_read_timeout_s: float = Field(default=30, gt=0, le=600, description="Between two reads from S3.")
    store_attempts_max: int = Field(
        default=4, ge=1, le=10, description="Attempts of one S3 call, the first among them."
    )
    store_connections_max: int = Field(
        default=64, ge=1, le=256, description="Connections to S3 that one process keeps open for reuse."
    )
    store_stall_timeout_s: float = Field(
        default=5, gt=0, le=600, description="Between two reads of an object's body; then the rest is asked for again."
    )
    store_part_bytes: int = Field(
        default=8 * _MIB, ge=64 * 1024, description="Larger objects are downloaded in ranges of this size."
    )
    store_parts_parallel: int = Field(default=4, ge=1, le=32, description="Ranges of one object side by side.")
    store_slow_part_s: float = Field(
        default=2,
        gt=0,
        le=600,
        description="A range that takes longer than this and than four times its fellows is asked for again, once.",
    )


class CacheSettings(Fragment):
    """The adapters that a replica keeps on its disk."""

    cache_dir: Path = Field(
        default=Path(".tenora/adapter-cache"), description="Folder of the adapter cache; on a fast disk."
    )
    cache_bytes: int = Field(
        default=20 * 1024 * _MIB, ge=_MIB, description="Budget of the cache; least recently used go first."
    )
    cache_free_bytes_min: int = Field(
        default=512 * _MIB,
        ge=0,
        description="Below this much free disk a new adapter is refused rather than downloaded.",
    )
    cache_age_max_s: float = Field(
        default=7 * 86_400, gt=0, description="At a start, adapters unused for longer are dropped from the disk."
    )
    cache_downloads_max: int = Field(default=8, ge=1, le=64, description="Adapters downloaded at the same time.")
    cache_tenant_downloads_max: int = Field(
        default=3, ge=1, le=64, description="The same, of one tenant (of one adapter where the tenant is not known)."
    )
    cache_stall_s: float = Field(
        default=1, gt=0, le=60, description="A download that received nothing for this long lends its slot to others."
    )
    cache_stalled_downloads_max: int = Field(
        default=24, ge=0, le=256, description="Stalled downloads that may run beside the others."
    )
    cache_waiting_max: int = Field(
        default=512, ge=1, le=100_000, description="Downloads that may wait for a slot; more are refused at once."
    )
    cache_tenant_waiting_max: int = Field(
        default=128, ge=1, le=100_000, description="The same, of one tenant; at least what a burst of adapters needs."
    )
    cache_download_timeout_s: float = Field(default=120, gt=0, le=3600, description="For one whole adapter.")
    cache_retry_after_max_s: float = Field(
        default=30, ge=1, le=3600, description="Longest Retry-After of an adapter that is still loading."
    )
    cache_circuit_open_s: float = Field(
        default=1, gt=0, le=60, description="First pause in asking an S3 that is down; it doubles up to 30 s."
    )
