"""Printed invoices and credit notes, opened by two readers: everything is on them, whole, and the bytes do not vary."""

import io
import subprocess
import sys
import unicodedata
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pypdfium2
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from pypdf import PdfReader

from billing.documents.pdf import render
from billing.documents.printed import printed_credit_note, printed_invoice
from billing.documents.settings import DocumentSettings
from billing.documents.typefaces import FOLDER, Typefaces
from billing.tax.parties import Buyer
from core.errors import Unprocessable
from tests.fixtures.documents import document, line, note

FULL = 400


@pytest.fixture(scope="module")
def typefaces() -> Typefaces:
    return Typefaces()


def invoice_pdf(typefaces: Typefaces, *lines, lines_max: int = FULL, **changes) -> bytes:
    return render(printed_invoice(document(*lines, **changes), lines_max=lines_max), typefaces)


def texts(pdf: bytes) -> list[str]:
    """The text by each of two readers, without the breaks of lines."""
    by_pypdf = "".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf)).pages)
    opened = pypdfium2.PdfDocument(pdf)
    by_pdfium = "".join(page.get_textpage().get_text_bounded() for page in opened)
    by_pdfium = by_pdfium.replace("\x02", "-")  # how it marks a hyphen at the end of a line
    return ["".join(unicodedata.normalize("NFC", text).split()) for text in (by_pypdf, by_pdfium)]


def shows(pdf: bytes, *wanted: str) -> None:
    for text in texts(pdf):
        for each in wanted:
            assert "".join(unicodedata.normalize("NFC", each).split()) in text, each


def font_of(path: Path, chars: str) -> Path:
    """A TrueType font with a square for each of these characters."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(point)
    pen.closePath()
    glyphs = [".notdef", *(f"u{ord(char):X}" for char in dict.fromkeys(chars))]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap({ord(char): f"u{ord(char):X}" for char in chars})
    builder.setupGlyf({name: pen.glyph() for name in glyphs})
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    name = f"Squares-{len(glyphs)}-{ord(chars[0]):X}"  # pdfium keeps a font by its name over several documents
    builder.setupNameTable({"familyName": "Squares", "styleName": "Regular", "psName": name})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


def test_an_invoice_shows_its_parties_terms_lines_taxes_credits_and_what_was_due(typefaces):
    shows(
        invoice_pdf(typefaces),
        "Invoice TNR-000042", "2026-10-01 to 2026-10-31", "Date 2026-11-03", "Due date 2026-11-17", "PO-4711",
        "Tenora GmbH", "Hauptstraße 1", "10115 Berlin", "VAT id DE123456789",
        "Ödön & Söhne <Kft.>", "Fő utca 2", "a@b.example",
        "Generated tokens, small, adapter support-bot", "1,234,567 tokens", "$0.60 per million", "$0.74",
        "Sum of lines $0.74", "Promotional credit -$0.10", "Net $0.64",
        "VAT 19 % on $0.64", "$0.12", "Reverse charge.", "Total", "$0.76", "Paid from the balance -$0.05",
        "Amount due (US dollars)", "$0.71", "SHA-256 " + "ab" * 32, "1 of 1",
        "Payable within 14 days, by 2026-11-17. Please name TNR-000042 with your payment.", "IBAN DE89 3704",
    )  # fmt: skip


def test_what_happens_to_an_invoice_later_does_not_change_its_document(typefaces):
    made = document(payments=(), credit_notes=(), events=())
    changed = msgspec.structs.replace(
        document(payments=document().payments[1:]),
        status="void",
        amount_due_cents=0,
        credited_cents=76,
    )
    assert render(printed_invoice(changed, lines_max=FULL), typefaces) == render(
        printed_invoice(made, lines_max=FULL), typefaces
    )


def test_the_lines_in_cents_add_up_to_the_sum(typefaces):
    lines = [line(1, amount_nanos=4_000_000, amount_cents=1), line(2, amount_nanos=4_000_000, amount_cents=0)]
    printed = printed_invoice(document(*lines, credits=()), lines_max=FULL)
    assert [row.amount for row in printed.rows] == ["$0.01", "$0.00"]


def test_a_fee_says_the_days_that_it_is_for(typefaces):
    fee = {"kind": "base_fee", "unit": "amount", "base_model": None, "adapter_id": None, "description": "Base fee"}
    whole = {"covers_from": datetime(2026, 11, 1, tzinfo=UTC), "covers_until": datetime(2026, 12, 1, tzinfo=UTC)}
    part = {"covers_from": datetime(2026, 11, 1, 15, tzinfo=UTC), "covers_until": datetime(2026, 12, 1, tzinfo=UTC)}
    rows = printed_invoice(document(line(1, **fee, **whole), line(2, **fee, **part)), lines_max=FULL).rows
    assert [(row.description, row.quantity, row.unit_price) for row in rows] == [
        ("Base fee, 2026-11-01 to 2026-11-30", "", ""),
        ("Base fee, 2026-11-01 15:00:00 to 2026-12-01 00:00:00 UTC", "", ""),
    ]


def test_numbers_are_never_broken_and_totals_are_on_one_page(typefaces):
    long = [line(number, quantity=Decimal(123_456_789_012_345), unit_price_nanos=1_234_567) for number in range(37)]
    pdf = invoice_pdf(typefaces, *long)
    pages = [page.get_textpage().get_text_bounded() for page in pypdfium2.PdfDocument(pdf)]
    assert sum(page.count("123,456,789,012,345") for page in pages) == 37
    assert sum(page.count("$1,234.567") for page in pages) == 37
    assert [("Net" in page, "Amount due" in page) for page in pages if "Net" in page or "Amount due" in page] == [
        (True, True)
    ]
    assert [f"{number} of {len(pages)}" in page for number, page in enumerate(pages, start=1)] == [True] * len(pages)


def test_a_credit_note_shows_what_it_is_for_and_where_the_money_goes(typefaces):
    printed = printed_credit_note(note(destination="refund", due_cents=0, refund_cents=12), document(), "cd" * 32)
    shows(
        render(printed, typefaces),
        "Credit note TNR-C-000003", "TNR-000042 of 2026-11-03", "Credit: an outage on 2 November",
        "Generated tokens, small, adapter support-bot", "VAT 19 % on $0.10", "Total credited", "$0.12", "Refund",
        "cd" * 32,
    )  # fmt: skip


LATIN = "Größe ßẞ Ångström Łódź İstanbul Ñandú " * 3
GREEK = "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία " * 4
CYRILLIC = "Съешь же ещё этих мягких французских булок Ґанок " * 3


@pytest.mark.scenario(112)
@pytest.mark.parametrize("name", [LATIN, GREEK, CYRILLIC, "W" * 120, "i" * 120, "a-b_" * 30])
def test_names_of_120_characters_are_shown_whole(typefaces, name):
    name = name[:120].strip()
    shows(invoice_pdf(typefaces, line(adapter_name=name), buyer=Buyer(legal_name=name)), f"adapter {name}", name)


@pytest.mark.scenario(112)
def test_chinese_is_shown_in_a_configured_font_and_else_as_code_points(typefaces, tmp_path):
    name = "东京支持机器人" * 17 + "。"
    extra = Typefaces([font_of(tmp_path / "squares.ttf", name)])
    shows(invoice_pdf(extra, line(adapter_name=name)), name)
    shows(invoice_pdf(typefaces, line(adapter_name="东京 bot")), "[U+4E1C][U+4EAC] bot")


@pytest.mark.scenario(112)
@pytest.mark.parametrize(
    "name",
    ["مساعد الدعم", "עזרה", "सहायता", "ช่วยเหลือ", "a\u202eb", "a\u200bb", "\U0001f9ff", "\ufffe", "\ue000", "x\x07y"],
)
def test_what_cannot_be_set_right_is_shown_as_code_points_also_with_a_font_that_has_it(typefaces, tmp_path, name):
    name = unicodedata.normalize("NFC", name)
    printed = "".join(
        char if char.isascii() and char.isprintable() else f"[U+{ord(char):04X}]" for char in name if not char.isspace()
    )
    shows(invoice_pdf(typefaces, line(adapter_name=name)), printed)
    letters = [char for char in name if char.isalpha() and not char.isascii() and ord(char) < 0xE000]
    if letters:
        extra = Typefaces([font_of(tmp_path / "squares.ttf", "".join(letters))])
        shows(invoice_pdf(extra, line(adapter_name=name)), printed)


def test_no_reader_finds_a_glyph_that_is_missing(typefaces):
    """Every character of every font that is drawn maps to a glyph: glyph 0 is the empty box."""
    name = "".join(chr(code) for code in range(0x20, 0x500)) + "東مع\u0301"
    for index in range(0, len(name), 120):
        pdf = invoice_pdf(typefaces, line(adapter_name=name[index : index + 120]))
        for text in texts(pdf):
            assert "\ufffd" not in text
            assert "\0" not in text


@pytest.mark.scenario(112)
def test_the_same_invoice_gives_the_same_bytes_in_every_process(typefaces):
    lines = [line(number, adapter_name=f"名 {number} Ψ") for number in range(60)]
    pdf = invoice_pdf(typefaces, *lines)
    assert invoice_pdf(Typefaces(), *lines) == pdf
    script = (
        "import sys; sys.path.insert(0, '.')\n"
        "from billing.documents.pdf import render\n"
        "from billing.documents.printed import printed_invoice\n"
        "from billing.documents.typefaces import Typefaces\n"
        "from tests.fixtures.documents import document, line\n"
        "lines = [line(number, adapter_name=f'名 {number} Ψ') for number in range(60)]\n"
        "sys.stdout.buffer.write(render(printed_invoice(document(*lines), lines_max=400), Typefaces()))\n"
    )
    environment = {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=environment)
    assert made.stdout == pdf


@pytest.mark.scenario(114)
def test_an_invoice_of_20_000_lines_is_summed_up_by_model_and_says_so(typefaces):
    lines = [line(number, base_model=f"model-{number % 3}") for number in range(20_000)]
    fee = line(20_000, kind="base_fee", base_model=None, adapter_id=None, unit="amount")
    pdf = invoice_pdf(typefaces, *lines, fee)
    shows(
        pdf,
        "20,001 lines, summed up here by model", "/api/v1/invoices/inv_1.csv", "model-0", "6,667 lines", "model-2",
        "6,666 lines", "Fees, discounts and other charges", "1 line", "$4,933.58",
    )  # fmt: skip
    assert len(PdfReader(io.BytesIO(pdf)).pages) == 1


def test_as_many_lines_as_allowed_are_listed_on_more_pages(typefaces):
    pdf = invoice_pdf(typefaces, *(line(number, adapter_name=f"bot-{number:03d}") for number in range(FULL)))
    shows(pdf, "bot-000", f"bot-{FULL - 1}", "2 of")


def test_lines_are_described_in_words(typefaces):
    shows(
        invoice_pdf(
            typefaces,
            line(1, tier=2, base_model=None, adapter_id=None),
            line(2, late_for=document().period_start, rank_class=16),
            line(3, kind="discount", amount_cents=-1, base_model=None, adapter_id=None, unit="amount"),
        ),
        "Generated tokens, all models, tier 2", "rank class 16, used in 2026-10, recorded late", "Discount",
        "-$0.01",
    )  # fmt: skip


def test_markup_in_names_is_text(typefaces):
    name = '<b>bold</b> &amp; <font name="x"> <img src="/etc/passwd"/>'
    shows(invoice_pdf(typefaces, line(adapter_name=name), buyer=Buyer(legal_name=name)), name)


def test_a_font_that_cannot_be_used_is_refused_at_the_start(tmp_path):
    (tmp_path / "no.ttf").write_bytes(b"not a font")
    for path in (tmp_path / "no.ttf", tmp_path / "missing.ttf"):
        with pytest.raises(Unprocessable, match="TENORA_DOCUMENTS_FONTS") as refused:
            Typefaces([path])
        assert str(path) in refused.value.message


def test_fonts_are_named_by_commas(monkeypatch):
    monkeypatch.setenv("TENORA_DOCUMENTS_FONTS", "/fonts/a.ttf, /fonts/b.ttf,")
    assert DocumentSettings().documents_fonts == (Path("/fonts/a.ttf"), Path("/fonts/b.ttf"))


def test_the_fonts_come_with_their_licence():
    assert "Bitstream Vera Fonts Copyright" in (FOLDER / "LICENSE_DEJAVU").read_text()


def test_a_document_without_parties_and_taxes_is_printed_too(typefaces):
    bare = msgspec.structs.replace(
        document(), seller=None, buyer=None, tax_lines=(), credits=(), payments=(), credit_notes=(), events=()
    )
    shows(render(printed_invoice(bare, lines_max=FULL), typefaces), "To", "tn_1", "Amount due (US dollars)")
