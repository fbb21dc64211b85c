"""Chooses the font of each character of a printed document, so that no reader shows an empty box.

DejaVu Sans is tried first, then the configured fonts. A character that no font has is printed as its code point, such
as ``[U+4EAC]``, and so is one of a script that needs shaping or runs from right to left (Arabic, Hebrew, Devanagari,
Thai, …), because letters in the wrong form and order would be another text. Control and format characters are printed
as code points too: they could hide or reorder text.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFError, TTFont

from core.errors import Unprocessable

FOLDER: Final = Path(__file__).parent / "fonts"
REGULAR: Final = "TenoraSans"
BOLD: Final = "TenoraSansBold"

_FILES: Final = {REGULAR: FOLDER / "DejaVuSans.ttf", BOLD: FOLDER / "DejaVuSans-Bold.ttf"}
_WRITTEN_AS_IS: Final = frozenset(
    {
        "LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO",
        "COMBINING", "MODIFIER", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH", "FEMININE", "MASCULINE", "MICRO",
        "KATAKANA-HIRAGANA", "OHM", "KELVIN", "ANGSTROM",
    }
)  # fmt: skip
"""How the names of letters and marks begin whose glyphs can be set side by side, from left to right."""
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})


class Typefaces:
    """The fonts of printed documents. Built once; raises Unprocessable for a font file that cannot be used."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        faces = {name: _load(name, path) for name, path in _FILES.items()}
        faces |= {name: _load(name, path) for name, path in ((_name_of(path), path) for path in files)}
        self._covered = {name: frozenset(face.face.charToGlyph) for name, face in faces.items() if name != BOLD}
        self._bold = frozenset(faces[BOLD].face.charToGlyph)
        for face in faces.values():
            pdfmetrics.registerFont(face)

    def markup(self, text: str, *, bold: bool = False) -> str:
        """The text as markup of a paragraph in ``REGULAR``, with the font of each run. No character is left out."""
        runs = self._runs(unicodedata.normalize("NFC", text), bold=bold)
        return "".join(
            escape(run) if name == REGULAR else f'<font name="{name}">{escape(run)}</font>' for name, run in runs
        )

    def _runs(self, text: str, *, bold: bool) -> Iterator[tuple[str, str]]:
        current, run = "", ""
        for char in text:
            name = self._font_of(char, bold=bold)
            printed = char if name else f"[U+{ord(char):04X}]"
            name = name or REGULAR
            if name != current and run:
                yield current, run
                run = ""
            current, run = name, run + printed
        if run:
            yield current, run

    def _font_of(self, char: str, *, bold: bool) -> str | None:
        if not _stands_alone(char):
            return None
        if bold and ord(char) in self._bold:
            return BOLD
        return next((name for name, covered in self._covered.items() if ord(char) in covered), None)


def _stands_alone(char: str) -> bool:
    """Whether the character's glyph can be set after the one before, from left to right, and is visible."""
    category = unicodedata.category(char)
    if category in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        return False
    if unicodedata.bidirectional(char) in _RIGHT_TO_LEFT:
        return False
    if category[0] in "LM":
        return unicodedata.name(char, "").partition(" ")[0] in _WRITTEN_AS_IS
    return True


def _name_of(path: Path) -> str:
    """A name of its own for each file, since ReportLab knows fonts by their names."""
    return f"Tenora{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"


def _load(name: str, path: Path) -> TTFont:
    try:
        return TTFont(name, str(path))
    except (OSError, TTFError) as error:
        raise Unprocessable(
            f"TENORA_DOCUMENTS_FONTS: {path} is not a TrueType font that can be embedded: {error}. Name a .ttf file "
            "with TrueType outlines.",
            code="font_not_usable",
        ) from error
