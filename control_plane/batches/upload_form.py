"""Reads the form that uploads a file, as it arrives: the file goes to a temporary file on disk, and the text field
has a small bound. Memory holds one chunk of the body at a time.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from litestar import Request
from litestar.datastructures import State
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from core.errors import InvalidRequest, TooLarge, UnsupportedMedia

_TEXT_BYTES_MAX: Final = 1024
_PARTS_MAX: Final = 8
_NAME_CHARS_MAX: Final = 255


@dataclass
class UploadedFile:
    """What the form had. The caller closes ``content``, a temporary file."""

    content: Any = field(default_factory=tempfile.TemporaryFile)  # its class has no public name
    filename: str | None = None
    purpose: bytes = b""
    size_bytes: int = 0


async def receive(request: Request[Any, Any, State], *, bytes_max: int) -> UploadedFile:
    """The form of one request. Raises InvalidRequest, TooLarge or UnsupportedMedia, and keeps nothing then."""
    content_type, options = request.content_type
    if content_type != "multipart/form-data" or not options.get("boundary"):
        raise UnsupportedMedia("Send the file as multipart/form-data, as OpenAI's SDKs do.", param="content-type")
    uploaded = UploadedFile()
    try:
        await _read_form(request.stream(), options["boundary"], uploaded, bytes_max)
    except BaseException as error:
        uploaded.content.close()
        if isinstance(error, MultipartError):
            raise InvalidRequest(f"The body is no valid form: {error}.", code="invalid_form") from error
        raise
    return uploaded


async def _read_form(stream: AsyncIterator[bytes], boundary: str, uploaded: UploadedFile, bytes_max: int) -> None:
    part: MultipartSegment | None = None
    with PushMultipartParser(boundary, max_segment_count=_PARTS_MAX) as parser:
        async for chunk in stream:
            for event in parser.parse(chunk) if chunk and not parser.closed else ():
                if isinstance(event, MultipartSegment):
                    part = event
                    _begin(part, uploaded)
                elif event and part is not None:
                    await _append(part, bytes(event), uploaded, bytes_max)
    if uploaded.filename is None:
        raise InvalidRequest("file: this field is required.", code="missing_field", param="file")


def _begin(part: MultipartSegment, uploaded: UploadedFile) -> None:
    if part.name == "file":
        name = (part.filename or "").strip()
        if uploaded.filename is not None:
            raise InvalidRequest("file: given more than once. Send one file.", code="repeated_field", param="file")
        if not name or len(name) > _NAME_CHARS_MAX or not name.isprintable():
            raise InvalidRequest(f"file: give it a name of at most {_NAME_CHARS_MAX} characters.", param="file")
        uploaded.filename = name
    elif part.name != "purpose":
        raise InvalidRequest(
            f"{part.name}: unknown field. Use file and purpose.", code="unknown_field", param=str(part.name)
        )


async def _append(part: MultipartSegment, data: bytes, uploaded: UploadedFile, bytes_max: int) -> None:
    if part.name == "file":
        uploaded.size_bytes += len(data)
        if uploaded.size_bytes > bytes_max:
            raise TooLarge(
                f"file: it is larger than {bytes_max} bytes. Split it into several batches.",
                code="file_too_large",
                param="file",
            )
        await asyncio.to_thread(uploaded.content.write, data)
        return
    uploaded.purpose += data
    if len(uploaded.purpose) > _TEXT_BYTES_MAX:
        raise InvalidRequest(f"purpose: at most {_TEXT_BYTES_MAX} bytes.", param="purpose")
