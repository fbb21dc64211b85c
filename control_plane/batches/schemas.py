"""Wire types of the batches room: OpenAI's, with a few fields of our own. Instants are Unix seconds, as OpenAI's."""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from core import fields
from core.contracts.grants import ServiceClass
from core.fields import about

T = TypeVar("T")
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
Priority = Literal["high", "normal", "low"]
Purpose = Literal["batch", "batch_output"]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
_LabelName = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=fields.ONE_LINE)]
_Label = Annotated[str, msgspec.Meta(max_length=512, pattern=fields.ONE_LINE_OR_EMPTY)]
_Labels = Annotated[dict[_LabelName, _Label], msgspec.Meta(max_length=16)]
_METADATA = about("Up to 16 values of your own, by name; null without any.")
_ENDPOINT = about("Path to which every line is sent.")
_SECONDS = "in Unix seconds; null before, or if it does not happen."


class OpenAIPage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list."""

    object: Annotated[Literal["list"], fields.OBJECT] = "list"
    data: Annotated[Sequence[T], fields.DATA]
    first_id: Annotated[str | None, about("Id of the first item; null without one.")]
    last_id: Annotated[str | None, about("Id of the last item, after which the next page begins; null without one.")]
    has_more: Annotated[bool, about("Whether there is a further page.")]


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file."""

    id: Annotated[str, fields.ID]
    object: Annotated[Literal["file"], fields.OBJECT] = "file"
    bytes: Annotated[int, fields.SIZE_BYTES]
    created_at: Annotated[int, about("When it was created, in Unix seconds.")]
    expires_at: Annotated[int, about("When it is deleted, in Unix seconds.")]
    filename: Annotated[str, about("Name of the file.")]
    purpose: Annotated[Purpose, about("batch for input files; batch_output for output and error files.")]
    status: Annotated[Literal["processed"], fields.STATUS] = "processed"


class FileDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was deleted."""

    id: Annotated[str, fields.ID]
    object: Annotated[Literal["file"], fields.OBJECT] = "file"
    deleted: Annotated[bool, about("Always true.")] = True


class NewBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch over an uploaded file."""

    input_file_id: Annotated[
        str, msgspec.Meta(max_length=64, pattern=fields.ONE_LINE), about("Id of a file of the purpose batch.")
    ]
    endpoint: Annotated[Endpoint, _ENDPOINT]
    completion_window: Annotated[Literal["24h"], about("Time in which it ends: 24h.")]
    metadata: Annotated[_Labels | None, _METADATA] = None


class NewShortBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch whose requests come with the call."""

    requests: Annotated[
        Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1, max_length=50_000)],
        about("Bodies of requests to the endpoint. The custom_id of the first one is request-1."),
    ]
    endpoint: Annotated[Endpoint, _ENDPOINT] = "/v1/chat/completions"
    callback_url: Annotated[
        Annotated[str, msgspec.Meta(max_length=2048)] | None,
        about("https URL of yours that is called when the batch has ended; null for none."),
    ] = None
    priority: Annotated[Priority, about("Order among your own batches.")] = "normal"


class ShortBatchView(msgspec.Struct, frozen=True, kw_only=True):
    """The batch that was made."""

    batch_id: Annotated[str, fields.ID]
    estimated_completion: Annotated[datetime, about("When it should end, by the speed of the last batches.")]
    callback_secret: Annotated[
        str | None,
        about("Secret that signs the calls. It is shown once, when the URL is new; null otherwise."),
    ] = None


class LineErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a line of the input file."""

    code: Annotated[str, about("Stable code of the error, for programs.")]
    line: Annotated[int | None, about("Number of the line, from 1; null where it is about the whole file.")]
    message: Annotated[str, fields.DETAIL]
    param: Annotated[str | None, about("The field that is wrong; null where no single one is.")]


class LineErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The first errors of a batch that failed."""

    object: Annotated[Literal["list"], fields.OBJECT] = "list"
    data: Annotated[Sequence[LineErrorView], fields.DATA]


class LineCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a batch."""

    total: Annotated[int, about("Lines.")]
    completed: Annotated[int, about("Lines with an answer of status 200.")]
    failed: Annotated[int, about("Lines with an error.")]


class BatchInputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the prompt tokens."""

    cached_tokens: Annotated[int, fields.CACHED_TOKENS]


class BatchOutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the generated tokens."""

    reasoning_tokens: Annotated[int, about("Tokens of reasoning: always 0, since they are not counted apart.")] = 0


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the answers so far."""

    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    input_tokens_details: Annotated[BatchInputDetails, about("Parts of the prompt tokens.")]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    output_tokens_details: Annotated[BatchOutputDetails, about("Parts of the generated tokens.")]
    total_tokens: Annotated[int, about("Prompt and generated tokens.")]


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, as OpenAI's SDKs know it. The last four fields are Tenora's."""

    id: Annotated[str, fields.ID]
    object: Annotated[Literal["batch"], fields.OBJECT] = "batch"
    endpoint: Annotated[str, _ENDPOINT]
    model: Annotated[str | None, about("Model of its lines; null if they name several, or before they are read.")]
    errors: Annotated[LineErrors | None, about("What is wrong with its lines, if it failed; null otherwise.")]
    input_file_id: Annotated[str, about("Id of the input file.")]
    completion_window: Annotated[Literal["24h"], about("Time in which it ends.")] = "24h"
    status: Annotated[BatchStatus, fields.STATUS]
    output_file_id: Annotated[str | None, about("Id of the file of answers; null before, or without any.")]
    error_file_id: Annotated[str | None, about("Id of the file of errors; null before, or without any.")]
    created_at: Annotated[int, about("When it was created, in Unix seconds.")]
    in_progress_at: Annotated[int | None, about(f"When its lines were found good, {_SECONDS}")]
    expires_at: Annotated[int, about("When it expires, in Unix seconds.")]
    finalizing_at: Annotated[int | None, about(f"When its last line had ended, {_SECONDS}")]
    completed_at: Annotated[int | None, about(f"When it was completed, {_SECONDS}")]
    failed_at: Annotated[int | None, about(f"When its lines were found bad, {_SECONDS}")]
    expired_at: Annotated[int | None, about(f"When it had expired, {_SECONDS}")]
    cancelling_at: Annotated[int | None, about(f"When its cancellation was asked for, {_SECONDS}")]
    cancelled_at: Annotated[int | None, about(f"When it was cancelled, {_SECONDS}")]
    request_counts: Annotated[LineCounts, about("Its lines.")]
    usage: Annotated[BatchUsage, about("Tokens of the answers so far.")]
    metadata: Annotated[dict[str, str] | None, _METADATA]
    service_class: Annotated[
        ServiceClass, about("Class of service of its lines: interactive once its deadline was in danger.")
    ]
    cost_nanos: Annotated[int, about("What the answers so far cost, in nanodollars, before tiers and discounts.")]
    estimated_completion: Annotated[int | None, about("When it should end, in Unix seconds; null once it has.")]
    paused: Annotated[bool, about("Whether an admin has paused all batches.")]


class NewPause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why all batches pause."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=fields.ONE_LINE), fields.KEPT_REASON]


class PauseView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether batches pause."""

    paused: Annotated[bool, about("Whether all batches pause.")]
    reason: Annotated[str | None, about("Why; null while they run.")] = None
    since: Annotated[datetime | None, about("Since when; null while they run.")] = None


def openai_page(items: Sequence[T], limit: int) -> OpenAIPage[T]:
    """The first ``limit`` of these items, of which a further one says that there is more."""
    shown = items[:limit]
    ids = list(map(attrgetter("id"), shown))
    return OpenAIPage(
        data=shown,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=len(items) > limit,
    )
