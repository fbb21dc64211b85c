"""Divides a large file into parts for a multipart upload, within the limits of S3. Pure arithmetic.

S3 takes parts of 5 MiB to 5 GiB, the last one any size, and at most 10,000 of them
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html). Sending them is the task of ``upload_store``.
"""

from typing import Final

import msgspec

MIB: Final = 1 << 20


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of a file. Numbers begin with 1."""

    number: int
    offset_bytes: int
    size_bytes: int


def part_bytes_for(size_bytes: int, *, part_bytes: int, parts_max: int) -> int | None:
    """The size of the parts a file is sent in: ``part_bytes``, or as much more (in whole MiB) as ``parts_max`` parts
    need. None for a file that goes in one piece. Plans allow so few bytes that no part grows beyond what S3 takes.
    """
    if size_bytes <= part_bytes:
        return None
    needed = -(-size_bytes // (parts_max * MIB)) * MIB
    return max(part_bytes, needed)


def parts_of(size_bytes: int, part_bytes: int) -> list[FilePart]:
    """The parts of a file in order; all but the last have ``part_bytes``."""
    return [
        FilePart(number=number, offset_bytes=offset, size_bytes=min(part_bytes, size_bytes - offset))
        for number, offset in enumerate(range(0, size_bytes, part_bytes), start=1)
    ]
