"""The few rules of the house a machine can keep, in one pass over the syntax trees. Each message names the fix."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "control_plane", "data_plane", "adapters", "billing", "tenora")
FILE_LINES_MAX, SETTINGS_LINES_MAX, TEST_FILE_LINES_MAX, FUNCTION_LINES_MAX = 400, 500, 400, 60
BANNED_NAMES = {"utils", "helpers", "common", "misc", "manager", "base", "util", "helper"}
SOLE_IMPORTERS = {
    "boto3": {"adapters/object_store/s3.py"},
    "stripe": {"billing/stripe/client.py"},
    "standardwebhooks": {"billing/notifications/webhook_sender.py"},
    "numba": {"data_plane/engine/cpu_lora/kernel.py", "data_plane/engine/cpu_lora/loops.py"},
    # The front end's names, the CPU's arithmetic, the worker's tiers, an abort that reports progress, a meter of steps,
    # and a parser that costs linear time: vLLM offers a seam for the first and the last alone.
    "vllm": {
        "adapters/vllm_resolver.py",
        "data_plane/engine/cpu_lora/punica_wrapper.py",
        "data_plane/engine/engine_core.py",
        "data_plane/engine/step_meter.py",
        "data_plane/engine/idle_wait.py",
        "data_plane/engine/tool_parser.py",
        "data_plane/engine/logprob_tokens.py",
        "data_plane/engine/worker/slot_manager.py",
        "data_plane/engine/worker/lora_manager.py",
    },
}
# Class names that two modules still share. The list may only get shorter.
SHARED_CLASS_NAMES = frozenset(
    {
        "Call",
        "Tenant",
    }
)
ARCHAIC = re.compile(
    r"(?<![a-z])(anew|whoever|whomever|nobody|for[ _]ever|told|no[ _]more|that[ _]which|let[ _]go|as[ _]ever)(?![a-z])",
    re.IGNORECASE,
)
# Lines that name the Unix user nobody, or a tenant, model or key that does not exist, and the style guide's own list.
NAMES_NOBODY = re.compile(r"_NOBODY|become_nobody|`nobody`|(tn|rev)_(of_)?nobody|\"nobody[\"/]")
MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def suite() -> Iterator[Path]:
    yield from sorted((ROOT / "tests").rglob("*.py"))


def where(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}" + (f":{node.lineno}" if node is not None else "")


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def complaints(check) -> list[str]:
    return [complaint for path in sources() for complaint in check(path, syntax_tree(path))]


def test_files_hold_one_idea():
    long = [
        where(path)
        for path in sources()
        if len(path.read_text().splitlines())
        > (SETTINGS_LINES_MAX if path.stem == "settings" or path.parent.name == "contracts" else FILE_LINES_MAX)
    ]
    long += [where(p) for p in suite() if len(p.read_text().splitlines()) > TEST_FILE_LINES_MAX]
    assert not long, f"split by what the parts do: {long}"


def test_functions_can_be_seen_whole():
    def check(path, tree):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
            ):
                yield f"{where(path, node)} {node.name}"

    assert not (found := complaints(check)), f"move the leaves into functions of their own: {found}"


def test_scripts_of_redis_can_be_seen_whole():
    """Each function, and what runs when they are all known."""
    long = []
    for path in sorted((ROOT / "data_plane").rglob("*.lua")):
        for part in re.split(r"(?m)^end\n", path.read_text()):
            code = [line for line in part.splitlines() if line and not line.startswith("--")]
            if len(code) >= FUNCTION_LINES_MAX:
                long.append(f"{path.relative_to(ROOT)}: {code[0]}")
    assert not long, f"move the leaves into functions of their own: {long}"


def test_files_are_named_for_what_they_hold():
    bad = [where(path) for path in sources() if path.stem in BANNED_NAMES or path.stem.endswith("_v2")]
    assert not bad, f"name the noun it holds or the step it does: {bad}"


def test_a_public_class_name_exists_once():
    found: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for node in syntax_tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(where(path))
    shared = {name: places for name, places in found.items() if len(places) > 1}
    new = {name: places for name, places in shared.items() if name not in SHARED_CLASS_NAMES}
    assert not new, f"one word, one meaning; give each class a name of its own (docs/GLOSSARY.md): {new}"
    assert set(shared) >= SHARED_CLASS_NAMES, f"remove from SHARED_CLASS_NAMES: {SHARED_CLASS_NAMES - set(shared)}"


def test_every_module_says_what_lives_in_it():
    bad = [where(path) for path in sources() if path.name != "__init__.py" and not ast.get_docstring(syntax_tree(path))]
    assert not bad, f"begin with a docstring of two sentences: {bad}"


def test_package_files_hold_only_a_docstring_and_rooms_of_billing_have_one():
    def check(path, tree):
        docstring = ast.get_docstring(tree) or ""
        has_code = len(tree.body) > bool(docstring)
        is_room = path.parent.parent == ROOT / "billing"
        if path.name == "__init__.py" and (has_code or len(docstring.splitlines()) > 5 or (is_room and not docstring)):
            yield where(path)

    assert not (found := complaints(check)), (
        f"say in five lines what a room holds and what not; code has a file: {found}"
    )


def test_nothing_mutable_lives_at_module_level():
    def check(path, tree):
        for node in tree.body:
            value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
            targets = [
                getattr(t, "id", "")
                for t in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
            ]
            constant = all(
                name.isupper() or (name.startswith("_") and name[1:].isupper()) or name.startswith("__")
                for name in targets
            )
            if isinstance(value, MUTABLE) and not constant:
                yield where(path, node)

    assert not (found := complaints(check)), f"build it in app.py and pass it in: {found}"


def test_only_one_file_commits():
    def check(path, tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "commit":
                if where(path) != "core/db.py":
                    yield where(path, node)

    assert not (found := complaints(check)), f"use core.db.unit_of_work: {found}"


def test_no_float_touches_money():
    def check(path, tree):
        if path.is_relative_to(ROOT / "billing") or path == ROOT / "core" / "money.py":
            for node in ast.walk(tree):
                if (isinstance(node, ast.Constant) and isinstance(node.value, float)) or (
                    isinstance(node, ast.Call) and getattr(node.func, "id", "") == "float"
                ):
                    yield where(path, node)

    allowed = {"billing/settings.py", "billing/worker.py", "billing/usage/metering.py"}  # seconds to wait, never money
    found = [each for each in complaints(check) if each.split(":")[0] not in allowed]
    assert not found, f"money is integer nanodollars: {found}"


def test_each_outside_world_has_one_importer():
    def check(path, tree):
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                package = name.split(".")[0]
                if package in SOLE_IMPORTERS and where(path) not in SOLE_IMPORTERS[package]:
                    yield f"{where(path, node)} imports {package}"

    assert not (found := complaints(check)), f"go through {SOLE_IMPORTERS}: {found}"


def test_redis_keys_are_spelled_in_one_file_and_their_patterns_in_another():
    def check(path, tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("tenora:"):
                if where(path) not in ("core/redis_keys.py", "core/redis_acl.py"):
                    yield where(path, node)

    assert not (found := complaints(check)), f"add a function to core/redis_keys.py: {found}"


def test_the_environment_is_read_by_settings_only():
    allowed = {
        "data_plane/engine/plugin.py",
        "data_plane/engine/agent/run.py",
        "data_plane/gateway/server.py",  # tells a library's threads by it, as nothing else can
    }  # and tenora, which hands it to its children

    def check(path, tree):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("environ", "getenv")
                and getattr(node.value, "id", "") == "os"
            ):
                if where(path).split(":")[0] not in allowed and not path.is_relative_to(ROOT / "tenora"):
                    yield where(path, node)

    assert not (found := complaints(check)), f"declare a field of a Settings class: {found}"


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "NotImplementedError"])
def test_nothing_is_left_half_said(word):
    bad = [where(path) for path in sources() if word in path.read_text()]
    assert not bad, f"finish it, or write it into docs with an owner: {bad}"


def test_prose_and_names_use_no_archaic_words():
    """See docs/STYLE.md, which quotes the words. Training data keeps its voice."""
    files = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("requirements/*.sh")]
    for folder in (*PACKAGES, "migrations", "benchmarks", "tests"):
        files += [path for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".lua", ".md")]
    found = [
        f"{where(path)}:{number} {word[0]}"
        for path in sorted(files)
        if path not in (ROOT / "docs" / "STYLE.md", Path(__file__))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (word := ARCHAIC.search(line)) and not NAMES_NOBODY.search(line)
    ]
    assert not found, f"say it in plain technical English (docs/STYLE.md): {found}"
