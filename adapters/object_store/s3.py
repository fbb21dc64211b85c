"""One S3 bucket: the client, the calls that every kind of object needs, and the errors for its failures.

The only importer of boto3. Every failure of S3 becomes ``Unavailable``, an absent object ``ObjectMissing``; callers
decide what that means. Works on AWS and on every server with its protocol and path-style addresses.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import boto3.session
import structlog
from boto3.exceptions import S3UploadFailedError
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
)

from adapters.settings import StoreSettings
from core.errors import AppError, NotFound, Unavailable
from core.settings import S3Settings

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client  # a development dependency
    from types_boto3_s3.type_defs import CORSRuleTypeDef

_UPLOAD_HEADERS: Final = ("content-type", "x-amz-checksum-sha256")
# Errors of servers without CORS rules; rclone takes the call for another CreateBucket.
_NO_CORS: Final = frozenset({"NotImplemented", "MethodNotAllowed", "BucketAlreadyExists", "BucketAlreadyOwnedByYou"})
_DELETE_BATCH: Final = 1000  # the most that one DeleteObjects call takes
_SERVER_ERROR: Final = 500
_ABSENT: Final = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchBucket", "NoSuchUpload"})
_PROBE_KEY: Final = "adapters/readable"  # need not exist
_WRONG_KEY: Final = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"})


class ObjectMissing(NotFound):
    """No object under this key."""

    default_code = "object_missing"


class StoreUnavailable(Unavailable):
    """S3 failed. ``kind``: no connection, a 5xx answer, no answer in time, too slow, or the call was refused."""

    default_code = "store_unavailable"

    def __init__(self, message: str, *, kind: Literal["unreachable", "failing", "silent", "slow", "refused"]) -> None:
        super().__init__(message)
        self.kind = kind


class ObjectDamaged(Unavailable):
    """The object has another size or checksum than it must have."""

    default_code = "object_damaged"


class StoredObject(NamedTuple):
    """One object of a listing."""

    key: str
    size_bytes: int
    modified_at: datetime


class Bucket:
    """One bucket. Thread-safe; every call blocks, for at most the settings' timeouts times their attempts.

    ``reader`` is a client for bodies: with shorter timeouts and without retries, which would start at the first byte
    again.
    """

    def __init__(self, s3: S3Settings, settings: StoreSettings) -> None:
        self.name = s3.s3_bucket
        self.settings = settings
        self.checksum_header = s3.s3_checksum_header
        self._region = s3.s3_region
        session = boto3.session.Session()  # shared: it reads S3's description once for all clients
        self.client = _client(session, s3, settings, s3.s3_endpoint)
        public = s3.s3_public_endpoint  # only signs: URLs carry the host that tenants reach
        self.signer = _client(session, s3, settings, public) if public else self.client
        self.reader = _client(
            session,
            s3,
            settings.model_copy(
                update={"store_read_timeout_s": settings.store_stall_timeout_s, "store_attempts_max": 1}
            ),
            s3.s3_endpoint,
        )

    def ensure(self, cors_origins: Sequence[str] = ()) -> None:
        """Create the bucket if it does not exist, and let pages of these origins PUT to presigned URLs. A server
        without CORS rules is logged (rclone: its flag ``--allow-origin`` does the same).
        """
        try:
            with translated(self.name):
                self.client.head_bucket(Bucket=self.name)
        except ObjectMissing:
            place: Any = {"CreateBucketConfiguration": {"LocationConstraint": self._region}}
            with translated(self.name):
                self.client.create_bucket(Bucket=self.name, **({} if self._region == "us-east-1" else place))
        if cors_origins:
            self._allow(cors_origins)

    def _allow(self, origins: Sequence[str]) -> None:
        rule: CORSRuleTypeDef = {
            "AllowedOrigins": list(origins),
            "AllowedMethods": ["PUT"],
            "AllowedHeaders": list(_UPLOAD_HEADERS),
            "ExposeHeaders": ["ETag"],
            "MaxAgeSeconds": 600,
        }
        with translated(self.name):
            try:
                self.client.put_bucket_cors(Bucket=self.name, CORSConfiguration={"CORSRules": [rule]})
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in _NO_CORS:
                    raise
                structlog.get_logger().warning("the object store has no CORS rules; set them where it is started")

    def head(self, key: str) -> int | None:
        """Size of an object in bytes; None when it does not exist."""
        try:
            with translated(key):
                return self.client.head_object(Bucket=self.name, Key=key)["ContentLength"]
        except ObjectMissing:
            return None

    def why_unreadable(self) -> str | None:
        """Why adapters cannot be read with these credentials, with the fix; None when they can. Asks for one object,
        which need not exist, and does not wait longer than one read of a download.
        """
        try:
            with translated(_PROBE_KEY):
                self.reader.get_object(Bucket=self.name, Key=_PROBE_KEY)["Body"].close()
        except ObjectMissing as absent:
            if _code(absent) != "NoSuchBucket":
                return None
            return (
                f"the object store has no bucket {self.name!r}; correct TENORA_S3_BUCKET, or create it with "
                "`python -m control_plane bucket`"
            )
        except StoreUnavailable as error:
            return self._explained(error)
        return None

    def _explained(self, error: StoreUnavailable) -> str:
        if isinstance(error.__cause__, NoCredentialsError):
            return "there are no credentials for the object store; set TENORA_S3_ACCESS_KEY and TENORA_S3_SECRET_KEY"
        if error.kind == "unreachable":
            where = self.reader.meta.endpoint_url
            return f"the object store at {where} cannot be reached; check TENORA_S3_ENDPOINT and the network"
        if (code := _code(error)) is None:
            return f"the object store did not answer ({type(error.__cause__).__name__}); check TENORA_S3_ENDPOINT"
        if error.kind == "failing":
            return f"the object store answers with errors ({code})"
        if code in _WRONG_KEY:
            return (
                f"the object store refused the credentials ({code}); correct TENORA_S3_ACCESS_KEY and "
                "TENORA_S3_SECRET_KEY"
            )
        return (
            f"the object store does not let these credentials read adapters ({code}); allow s3:GetObject on "
            "adapters/* and s3:ListBucket, and check TENORA_S3_REGION"
        )

    def upload(self, path: Path, key: str, progress: Callable[[int], None]) -> None:
        """Send a file of any size, in parts; ``progress`` gets the bytes of each. Raises as S3's calls do."""
        try:
            self.client.upload_file(str(path), self.name, key, Callback=progress)
        except S3UploadFailedError as error:
            raise (error.__context__ or error) from None  # the failure of the part

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object under ``prefix``, which must end with a slash. Returns their number."""
        if not prefix.endswith("/") or prefix.count("/") < 2:
            raise ValueError(f"{prefix!r} names more than one revision's folder")
        keys = [entry.key for entry in self.objects(prefix)]
        self.delete(keys)
        return len(keys)

    def objects(self, prefix: str) -> list[StoredObject]:
        """Every object under ``prefix``."""
        with translated(prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
            return [
                StoredObject(entry["Key"], entry["Size"], entry["LastModified"])
                for page in pages
                for entry in page.get("Contents", [])
            ]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist are ignored."""
        for at in range(0, len(keys), _DELETE_BATCH):
            objects: Any = {"Objects": [{"Key": key} for key in keys[at : at + _DELETE_BATCH]]}
            with translated(keys[at]):
                answer = self.client.delete_objects(Bucket=self.name, Delete=objects)
            if errors := answer.get("Errors"):
                raise Unavailable(f"{errors[0].get('Key')} could not be deleted", code="store_unavailable")

    def put(self, key: str, body: bytes) -> None:
        """Write a small object, whole or not at all."""
        with translated(key):
            self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def get(self, key: str) -> bytes:
        """Read a small object. Raises ObjectMissing."""
        with translated(key):
            return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()


@contextmanager
def translated(key: str) -> Iterator[None]:
    """Converts S3's failures into our errors. S3's message goes to the cause, not into our message."""
    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in _ABSENT:
            raise ObjectMissing(f"there is no {key}") from error
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= _SERVER_ERROR:
            raise StoreUnavailable(f"the object store failed on {key}", kind="failing") from error
        raise StoreUnavailable(f"the object store refused a call on {key}", kind="refused") from error
    except (EndpointConnectionError, ConnectTimeoutError) as error:
        raise StoreUnavailable("the object store cannot be reached", kind="unreachable") from error
    except BotoCoreError as error:
        raise StoreUnavailable(f"the object store did not answer for {key}", kind="silent") from error


def _code(error: AppError) -> str | None:
    """S3's code of the failure; None when it did not answer."""
    cause = error.__cause__
    return cause.response.get("Error", {}).get("Code") if isinstance(cause, ClientError) else None


def base64_of(sha256: str) -> str:
    """A hexadecimal SHA-256 as S3 writes checksums."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _client(
    session: boto3.session.Session, s3: S3Settings, settings: StoreSettings, endpoint: str | None
) -> "S3Client":
    credentials: dict[str, Any] = {}
    if s3.s3_access_key:
        credentials = {
            "aws_access_key_id": s3.s3_access_key,
            "aws_secret_access_key": s3.s3_secret_key.get_secret_value(),
        }
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=s3.s3_region,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            connect_timeout=settings.store_connect_timeout_s,
            read_timeout=settings.store_read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": settings.store_attempts_max},
            max_pool_connections=settings.store_connections_max,
            request_checksum_calculation="when_required",  # not every S3 reads checksums in trailers
            response_checksum_validation="when_required",
        ),
        **credentials,
    )
