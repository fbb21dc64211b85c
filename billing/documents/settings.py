"""How invoices are printed, read from ``TENORA_DOCUMENTS_…``."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from core.settings import Fragment, split_commas


class DocumentSettings(Fragment):
    """PDF documents of the control plane's web process."""

    documents_fonts: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(split_commas)] = Field(
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
