"""Rules of this package that a machine can check: no floats in money, and the files promised to be pure are pure."""

import ast
from collections.abc import Iterator
from pathlib import Path

import billing

FILES = sorted(Path(billing.__path__[0]).rglob("*.py"))
PURE = {
    "periods", "lines", "calendar", "rates", "replica_time", "step_model", "allocation", "break_even", "proration",
    "fees", "quantities", "state", "discounting", "commitments", "resource_charge", "use", "statement", "usage_charge",
}  # fmt: skip
UNREACHABLE_FROM_PURE = {"sqlalchemy", "sqlmodel", "redis", "time", "core.clock", "core.db"}


def nodes(files: list[Path]) -> Iterator[tuple[Path, ast.AST]]:
    return ((file, node) for file in files for node in ast.walk(ast.parse(file.read_text())))


def test_no_float_is_named_or_written_outside_durations():
    for file, node in nodes(FILES):
        assert not (isinstance(node, ast.Name) and node.id == "float"), f"{file.name}:{node.lineno}: money is integers"
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), (
            f"{file.name}:{node.lineno}: write amounts and durations as whole numbers of a smaller unit"
        )


def test_pure_files_import_no_clock_and_no_io():
    for file, node in nodes([file for file in FILES if file.stem in PURE]):
        imported = set()
        if isinstance(node, ast.Import):
            imported = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported = {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
        assert not imported & UNREACHABLE_FROM_PURE, f"{file.name} is pure: move what needs {imported} to its caller"


def test_only_the_ledger_writes_entries():
    for file in FILES:
        if file.stem not in {"ledger", "models"}:
            source = file.read_text()
            assert "insert(LedgerEntry)" not in source, file.name
            assert "LedgerEntry(" not in source, file.name
