"""The conventions that matter, as tests: one-way imports, one file a thing, pages, docstrings, the README's tables."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import pipelog
import pipelog.detectors
import pipelog.parsers
import pipelog.postmortem
import pipelog.replay
import pipelog.reporters
import pipelog.tables
from pipelog.cli import main
from pipelog.findings import DETECTORS, Detector
from pipelog.parsing import BLOCKS, LINES, RECORDS
from pipelog.reading.marks import marks
from pipelog.registry import load
from pipelog.reporters import REPORTERS
from pipelog.tables import TABLES
from tests.conftest import FIXTURES, ROOT

for package in (pipelog.parsers, pipelog.tables, pipelog.replay, pipelog.postmortem, pipelog.detectors, pipelog.reporters):
    load(package)

SOURCE = ROOT / "pipelog"
MODULES = sorted(p for p in SOURCE.rglob("*.py") if "templates" not in p.parts)
RULES = sorted(DETECTORS.values(), key=lambda d: d.id)
HEADINGS = ("What it does:", "Why it matters:", "What to do:", "When it is wrong:", "Thresholds:")

# each may import those that stand before it, and its own
LAYERS = (
    ("_version", "errors", "registry", "_text", "schedule", "schema"),
    ("events",),
    ("parsing", "tracing"),
    ("parsers",),
    ("reading",),
    ("tables", "placing"),
    ("replay",),
    ("findings",),
    ("postmortem", "detectors"),
    ("report", "charts"),
    ("summary", "redaction", "timeline"),
    ("reporters",),
    ("planning",),
    ("comparing",),
    ("diagnosis",),
    ("kept",),
    ("cli", "__init__", "__main__"),
)


def layer(part: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if part in names)


def imports(path: Path) -> set[str]:
    """First parts below `pipelog` of what a module imports, at its top or inside."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "pipelog" else [f"pipelog.{a.name}" for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("pipelog.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own in ("cli", "__init__", "__main__"):
        return
    # tables say what is missing with a type of their own, which findings share
    wrong = {i for i in imports(path) if i != own and layer(i) > layer(own)}
    assert not wrong, f"{own} imports {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_plotly_and_printing_stay_in_their_places(path: Path) -> None:
    text = path.read_text()
    if "reporters" not in path.parts:
        assert not re.search(r"^\s*(import|from) plotly", text, re.MULTILINE)
    assert not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "print"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_sizes(path: Path) -> None:
    tree = ast.parse(path.read_text())
    long = [
        (n.name, n.end_lineno - n.lineno + 1)
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef) and n.end_lineno and n.end_lineno - n.lineno >= 70
    ]
    assert not long
    assert path.read_text().count("\n") <= 450


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_public_names_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    bare = [
        n.name
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_") and n.col_offset == 0 and not ast.get_docstring(n)
    ]
    assert not bare


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_rule_is_where_its_id_says_and_has_its_page(rule: Detector) -> None:
    file = Path(sys.modules[rule.check.__module__].__file__ or "")
    assert file.stem == f"{rule.id.lower()}_{rule.name.replace('-', '_')}"
    first = rule.page.splitlines()[0]
    assert re.fullmatch(rf"{rule.id} {rule.name}: .+\.", first)
    places = [rule.page.find(h) for h in HEADINGS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_every_threshold_is_explained(rule: Detector) -> None:
    explained = rule.page[rule.page.find("Thresholds:") :]
    assert not [name for name in rule.options if name not in explained]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_rule_has_cases(rule: Detector) -> None:
    assert (FIXTURES / "detectors" / f"{rule.id}.toml").exists()


def test_contract_names_exist() -> None:
    wanted = {
        "high-bubble-ratio", "stage-imbalance", "memory-skew", "communication-stall", "straggler-rank", "throughput-drop", "slow-data-loading",
        "few-micro-batches", "batch-arithmetic", "memory-headroom", "memory-growth", "loss-nan", "loss-spike", "loss-scale-collapse",
        "untrustworthy-figure", "missing-ranks", "truncated-input",
    }  # fmt: skip
    assert wanted <= {r.name for r in RULES}


@pytest.mark.parametrize("key", sorted([*RECORDS, *BLOCKS, *LINES]))
def test_every_parser_has_a_golden_log(key: str) -> None:
    assert list((FIXTURES / "logs" / key).glob("*.log"))


def test_every_golden_folder_has_its_parser() -> None:
    assert {p.name for p in (FIXTURES / "logs").iterdir() if p.is_dir()} <= {*RECORDS, *BLOCKS, *LINES}


def test_no_mark_belongs_to_two_parsers() -> None:
    assert len(marks().records) == len(RECORDS) + len(BLOCKS)
    assert len(marks().lines) == len(LINES)


def test_tables_need_tables_that_exist() -> None:
    given = {"events", "inputs", "wanted_attempt", "tables"}
    missing = {(t.name, n) for t in TABLES.values() for n in t.needs if n not in TABLES and n not in given}
    missing |= {(d.id, n) for d in RULES for n in d.needs if n not in TABLES and n not in given}
    assert not missing


def test_readme_has_the_rule_table() -> None:
    readme = (ROOT / "README.md").read_text()
    for rule in RULES:
        says = rule.page.splitlines()[0].partition(": ")[2].rstrip(".")
        assert f"| {rule.id} | {rule.name} | {says} |" in readme


def test_readme_names_every_command_and_no_other() -> None:
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`pipelog (\w+)", readme))
    assert named == set(main.commands) - {"main"}  # type: ignore[attr-defined]


def test_every_command_and_option_has_help() -> None:
    for name, command in main.commands.items():  # type: ignore[attr-defined]
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0
        assert command.help
        assert not [p.name for p in command.params if p.param_type_name == "option" and not p.help]


def test_readme_code_names_the_public_api() -> None:
    readme = (ROOT / "README.md").read_text()
    used = set(re.findall(r"pipelog\.(\w+)\(", readme))
    assert used <= set(pipelog.__all__)


def test_links_of_documents_lead_somewhere() -> None:
    """Those of docs/ lead to pages that are made, too: tests/test_docs.py follows them in the site."""
    for document in (ROOT / "README.md", FIXTURES / "README.md", ROOT / "reports" / "README.md"):
        for target in re.findall(r"\]\(([^)#]+?)\)", document.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_nothing_committed_names_a_path_of_a_workplace() -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.split(b"\0")
    pattern = re.compile(rb"/" + rb"work/(?:main|shared)|/root/\.")
    found = [f.decode() for f in files if f and (ROOT / f.decode()).is_file() and pattern.search((ROOT / f.decode()).read_bytes())]
    assert not found


def test_reporters_are_there() -> None:
    assert {"json", "text", "html"} <= set(REPORTERS)
