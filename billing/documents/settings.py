"""How invoices are printed, read from ``TENORA_DOCUMENTS_…``."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from core.settings import Fragment


class DocumentSettings(Fragment):
    """PDF documents of the control plane's web process."""

    documents_fonts: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        max_length=8,
        description="TrueType files for characters that DejaVu Sans lacks, such as Chinese ones, by commas; the first "
        "that has a character prints it. A character that none has is printed as its code point.",
    )
    documents_pdf_lines_max: int = Field(
        default=400,
        ge=1,
        le=2_000,
        description="Most invoice lines that a PDF lists. A PDF of more lines sums them up by model and says so.",
    )

    @field_validator("documents_fonts", mode="before")
    @classmethod
    def _split(cls, given: object) -> object:
        return tuple(each.strip() for each in given.split(",") if each.strip()) if isinstance(given, str) else given
