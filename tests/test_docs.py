"""Docs are held against the code: reference pages are current, and every path, test and command they name exists."""

import ast
import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from adapters import report as verdict
from data_plane.engine.agent.canary import jobs as canary
from tenora.docs import reference
from tenora.docs.error_examples import EXAMPLES
from tests.corpus.requests import http_requests
from tests.corpus.uploads import corpus as uploads

ROOT = Path(__file__).parent.parent
ROOMS = ("core", "control_plane", "data_plane", "adapters", "billing", "tenora", "migrations", "tests", "examples")
KNOWN = {path.name for room in ROOMS for path in (ROOT / room).rglob("*")}
DOCS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *ROOT.glob("*/README.md"),
]


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_reference_says_what_the_code_says(page):
    written = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    assert written == reference.render(page), "run: make reference"


def test_every_metric_says_what_it_means():
    rows = [line.split(" | ") for line in reference.render("metrics").splitlines()[6:]]
    assert rows
    assert [row[0] for row in rows if not row[3].strip(" |")] == []


def test_every_code_that_a_report_can_hold_is_listed():
    listed = re.findall(r"^\| `(\w+)`", reference.render("errors"), flags=re.MULTILINE)
    assert {*get_args(verdict.Code), *get_args(canary.Code), "canary_failed", "adapter_deleted"} <= set(listed)
    assert "target_modules" not in listed, "a field is no code"


def test_every_error_code_has_an_example():
    rows = [line.split(" | ") for line in reference.render("errors").splitlines()[6:]]
    assert rows
    assert [row[0] for row in rows if not row[2].strip(" |")] == []


def test_every_written_example_of_an_error_is_a_message_in_the_source():
    """Each example matches a text in the source; a value stands where the text inserts one."""
    texts = [text for text in reference.message_texts() if len(text.replace("…", "")) >= 6]
    patterns = [re.compile(".+".join(map(re.escape, text.split("…")))) for text in texts]
    missing = [code for code, example in EXAMPLES.items() if not any(each.fullmatch(example) for each in patterns)]
    assert missing == []


@pytest.mark.parametrize("doc", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(doc):
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", doc.read_text())
    assert [target for target in targets if not (doc.parent / target).exists()] == []


def test_the_index_lists_every_how_to_page():
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs" / "how-to").iterdir() if f"(how-to/{page.name})" not in index] == []


@pytest.mark.parametrize("doc", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_exist(doc):
    """A name in code style that ends like a source file is one, somewhere in the tree."""
    named = set(re.findall(r"`([\w./-]+\.(?:py|lua|toml|lock|sh|jsonl))`", doc.read_text()))
    assert [name for name in sorted(named) if not (ROOT / name).exists() and Path(name).name not in KNOWN] == []


@pytest.mark.parametrize("doc", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_tests_exist(doc):
    """A name like pytest's own, which may leave out the case in brackets."""
    gone = []
    for path, name in sorted(set(re.findall(r"`(tests/[\w./]+\.py)::(\w+)`", doc.read_text()))):
        tree = ast.parse((ROOT / path).read_text()) if (ROOT / path).exists() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}:
            gone.append(f"{path}::{name}")
    assert not gone


def test_every_regression_names_its_test_or_its_row_of_a_corpus():
    lines = (ROOT / "docs" / "REGRESSIONS.md").read_text().splitlines()
    entries = [line for line in lines if re.match(r"\| (?!-|project and issue|advisory \|)", line)]
    rows = {item.row for item in (*http_requests.ITEMS, *uploads.ITEMS)}
    assert len(entries) > 50
    for entry in entries:
        held = entry.split(" | ")[-1]
        named = re.findall(r"\brow (\w+)", held)
        assert set(named) <= rows, entry
        assert named or "::test_" in held, entry


def test_every_promise_of_the_security_page_names_its_test():
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert rows
    assert [row for row in rows if "::test_" not in row.rstrip(" |").rpartition(" | ")[2]] == []


def test_make_help_lists_every_target_the_readme_names():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in set(re.findall(r"`make ([a-z]+)`", (ROOT / "README.md").read_text())):
        assert f"  {target} " in listed
