"""The documentation: the site builds, its links lead somewhere, its examples run and print what they show, and every rule, category, option and field is told."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from click.testing import CliRunner
from playwright.sync_api import Browser

import pipelog.detectors
import pipelog.postmortem.kinds
from pipelog.cli import main
from pipelog.events import EVENTS
from pipelog.findings import DETECTORS
from pipelog.postmortem.kinds import KINDS
from pipelog.registry import load
from pipelog.schema import text as schema
from tests.conftest import FIXTURES, ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))
PLUGIN = ROOT / "docs" / "extending.md"
_FENCE = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$', re.MULTILINE | re.DOTALL)
_TRAINING = ("torch", "deepspeed")
"""What only a training job has: examples that need it are parsed and not run."""


@functools.cache
def made() -> ModuleType:
    """The hook that makes pages from the code."""
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "tools" / "docs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def pages() -> dict[str, str]:
    return made().pages()


def fences(page: Path, language: str) -> list[str]:
    return [f["body"] for f in _FENCE.finditer(page.read_text()) if f["language"] == language]


def having(language: str, *, plugin: bool = False) -> list[Path]:
    return [page for page in DOCS if fences(page, language) and (plugin or page != PLUGIN)]


# ---- what is made from the code


def test_every_rule_has_its_page_with_its_text_and_its_options() -> None:
    load(pipelog.detectors)
    for rule in DETECTORS.values():
        page = pages()[f"rules/{rule.id}.md"]
        assert f"[{rule.id}]({rule.id}.md)" in pages()["rules/index.md"]
        plain = " ".join(
            re.sub(r"\[([^\]]+)\]\(PL\d+\.md\)", r"\1", page).replace("\\", "").replace("&lt;", "<").replace("&amp;", "&").lower().split()
        )
        for said in rule.page.partition(": ")[2].split("\n"):
            words = said.partition(": ")[2] if re.match(r"[A-Z][a-z ]+: ", said) else said
            assert " ".join(words.lower().split()) in plain, rule.id
        for name, value in rule.options.items():
            assert f"| `{name}` | {value:g} |" in page


def test_a_rule_s_page_says_when_it_cannot_tell() -> None:
    """As its module words it, with values left open."""
    page = pages()["rules/PL201.md"].partition("## When it cannot tell")[2]
    assert "- one stage: no pipeline\n" in page
    assert "- … of … stages were measured: a torch profiler trace of every stage would show the others\n" in page


def test_every_kind_and_no_other_category_is_told() -> None:
    load(pipelog.postmortem.kinds)
    assert {k.category for k in KINDS.values()} == set(made().CATEGORIES)
    page = pages()["failures.md"]
    wordings = tomllib.loads((FIXTURES / "postmortem" / "kinds.toml").read_text())
    assert page.count("- What to do, in the example below: ") == len(KINDS.keys() & wordings.keys())
    for kind in KINDS.values():
        assert f"### {kind.name} {{ #kind-{kind.name} }}" in page
        within = page[page.index(f"\n## {kind.category} {{") :]
        assert within.index(f"### {kind.name} ") < (within.index("\n## ", 4) if "\n## " in within[4:] else len(within))


def test_every_command_and_option_is_told() -> None:
    page = pages()["commands.md"]
    for name, command in main.commands.items():  # type: ignore[attr-defined]
        part = page.partition(f"\n## pipelog {name} {{")[2].partition("\n## ")[0]
        assert part
        assert not [o for p in command.params if p.param_type_name == "option" for o in p.opts if o not in part]


@pytest.mark.parametrize("name", ["report", "plan", "diff"])
def test_every_field_of_a_document_is_told(name: str) -> None:
    def names(part: object) -> set[str]:
        if isinstance(part, list):
            return set().union(*map(names, part))
        if not isinstance(part, dict):
            return set()
        own = set(part["properties"]) if isinstance(part.get("properties"), dict) else set()
        return own | set().union(*map(names, part.values()))

    page = pages()[f"{name}-json.md"]
    told = {word for path in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) for word in re.split(r"\.|\[\]", path)}
    missing = names(json.loads(schema(f"{name}-1.json"))) - told
    assert not missing


def test_the_event_table_s_columns_are_told() -> None:
    page = made().on_page_markdown((ROOT / "docs" / "events.md").read_text())
    for column in EVENTS:
        assert f"| `{column.name}` |" in page


def test_text_of_the_code_means_nothing_as_markdown() -> None:
    prose = made().prose
    assert prose("(p-1)/(v*m+p-1) of a*b, `x*y_z` <b>&") == "(p-1)/(v\\*m+p-1) of a\\*b, `x*y_z` &lt;b>&amp;"
    assert prose("a_b [1] {c} d|e") == "a\\_b \\[1\\] \\{c\\} d\\|e"
    assert prose("Beside stage-imbalance, not stage-imbalances") == "Beside [stage-imbalance](RULES/PL201.md), not stage-imbalances"


# ---- the site


@dataclass
class Page(HTMLParser):
    """Ids, links, and what a browser would fetch."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name in ("id", "name"):
                self.ids.add(value)
            elif tag == "a" and name == "href":
                self.links.append(value)
            elif name == "src" or (tag == "link" and name == "href" and dict(attrs).get("rel") not in ("canonical", "next", "prev")):
                self.fetched.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site is built with mkdocs: pip install -e '.[docs]'")
    pytest.importorskip("material", reason="the site is built with mkdocs-material: pip install -e '.[docs]'")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_the_site_builds_and_all_that_it_names_is_there(site: Path) -> None:
    """Pages, pictures, scripts, fonts and anchors; nothing is fetched from elsewhere, and no page names the machine that built it."""
    read = {}
    for file in site.rglob("*.html"):
        if file.parent.name == "reports" and file.name != "index.html":
            continue  # whole reports, which have tests of their own
        read[file] = page = Page()
        text = file.read_text()
        page.feed(text)
        assert str(ROOT) not in text
        assert "<!-- columns -->" not in text
    assert len(read) > len(pages())
    wrong = []
    for file, page in read.items():
        here = site if file.name == "404.html" else file.parent  # served from the root, wherever it is shown
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.fetched:
                    wrong.append(f"{file.name} fetches {link}")
                continue
            target = file if not parts.path else (here / unquote(parts.path.lstrip("/") if file.name == "404.html" else parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{file.name}: {link} is not there")
            elif parts.fragment and target in read and unquote(parts.fragment) not in read[target].ids and parts.fragment != "__top":
                wrong.append(f"{file.name}: {link} has no such anchor")
    assert not wrong


def test_the_site_is_of_moderate_size(site: Path) -> None:
    assert sum(f.stat().st_size for f in site.rglob("*") if f.is_file()) < 25e6


@pytest.mark.browser
def test_the_site_opens_from_disk_and_searches_without_network(site: Path, chromium: Browser) -> None:
    """At 390 px nothing is wider than the page; a search finds a page; the console says nothing, axe-core finds nothing serious."""
    said: list[str] = []
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    page.on("console", lambda m: said.append(m.text))
    page.on("pageerror", lambda e: said.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith("file:") else said.append(r.url))
    for name in ("index", "good-logs", "report-json", "failures", "rules/PL401", "reports/index"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto((site / "rules" / "PL201.html").as_uri())
    page.wait_for_function("typeof __index === 'object' && document.querySelector('iframe')")
    page.click(".md-search__input")
    page.keyboard.type("flight recorder")
    page.wait_for_selector("a.md-search-result__link[href*='good-logs.html']", state="attached", timeout=10_000)
    page.close()
    for name, scheme in (("good-logs", "light"), ("index", "dark")):
        page = chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)  # axe itself writes to the console
        page.goto((site / f"{name}.html").as_uri())
        faults = [(v["id"], v["nodes"][0]["html"]) for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
        page.close()
        assert not faults, (name, scheme)
    assert said == []


# ---- examples


def runs(body: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    parts = re.split(r"^\$ (.*)\n", body, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def shown(text: str) -> re.Pattern[str]:
    """What is shown of an output: a line `…` stands for any lines, at the end of a line for the rest of it."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line.removesuffix("…")) + (".*" if line.endswith("…") else "") + r"\n"
        for line in text.splitlines()
    ]
    return re.compile("".join(lines))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run the examples in, as if it were the repository."""
    (tmp_path / "fixtures").symlink_to(FIXTURES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("page", having("console"), ids=lambda p: p.stem)
@pytest.mark.usefixtures("job")
def test_commands_print_what_is_shown(page: Path) -> None:
    for body in fences(page, "console"):
        for command, printed in runs(body):
            program, *words = command.split()
            assert program == "pipelog"
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, command
            assert shown(printed).fullmatch(done.stdout) or not printed, f"{command}\n{done.stdout}"


@pytest.mark.parametrize("page", having("python"), ids=lambda p: p.stem)
@pytest.mark.usefixtures("job")
def test_python_examples_run(page: Path) -> None:
    for body in fences(page, "python"):
        used = {
            n.module if isinstance(n, ast.ImportFrom) else n.names[0].name
            for n in ast.walk(ast.parse(body))
            if isinstance(n, ast.Import | ast.ImportFrom)
        }
        if not {str(name).partition(".")[0] for name in used} & set(_TRAINING):
            exec(compile(body, page.name, "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", having("pycon"), ids=lambda p: p.stem)
@pytest.mark.usefixtures("job")
def test_sessions_answer_what_is_shown(page: Path) -> None:
    for body in fences(page, "pycon"):
        test = doctest.DocTestParser().get_doctest(body, {}, page.name, page.name, 0)
        assert doctest.DocTestRunner().run(test) == (0, len(test.examples))


@pytest.mark.parametrize("page", [*DOCS, ROOT / "README.md"], ids=lambda p: p.stem)
def test_json_toml_and_the_options_of_every_command_named_are_right(page: Path) -> None:
    for body in fences(page, "json"):
        json.loads(body)
    for body in fences(page, "toml"):
        tomllib.loads(body)
    text = page.read_text()
    fenced = "\n".join(re.findall(r"^```.*\n((?:.*\n)*?)```$", text, re.MULTILINE))
    named = re.findall(r"`pipelog (\w+)([^`\n]*)", text) + re.findall(r"^(?:\$ )?pipelog (\w+)(.*)$", fenced, re.MULTILINE)
    for name, words in named:
        command = main.commands.get(name)  # type: ignore[attr-defined]
        assert command, name
        known = {o for p in command.params for o in p.opts} | {"--help"}
        assert not set(re.findall(r"(?<!\S)--?[a-z][\w-]*", words)) - known, words


def test_the_logs_that_scripts_are_told_to_print_are_read(job: Path) -> None:
    """docs/good-logs.md gives a function that prints the memory of a rank."""
    source = next(b for b in fences(ROOT / "docs" / "good-logs.md", "python") if "def report_memory" in b)
    written = subprocess.run(  # in a process of its own, with a stand-in for torch
        [sys.executable, "-c", f"import sys, types\n{_STAND_IN}\n{source}\nfor rank in range(2): report_memory(rank, 100)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (job / "train.log").write_text(written)
    rows = pipelog.read(str(job / "train.log")).table.to_pandas()
    peaks = rows[(rows["kind"] == "memory") & (rows["name"] == "max_allocated")]
    assert peaks["rank"].tolist() == [0, 1]
    assert peaks["step"].tolist() == [100, 100]
    assert peaks["bytes"].tolist() == [5 << 30, 5 << 30]


_STAND_IN = """
torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(memory_allocated=lambda: 3 << 30, max_memory_allocated=lambda: 5 << 30, memory_reserved=lambda: 6 << 30, max_memory_reserved=lambda: 7 << 30)
sys.modules["torch"] = torch
"""


def test_the_plug_in_of_the_page_on_extending_works_as_it_stands_there(tmp_path: Path) -> None:
    """Each file is written as the page gives it; what they say of acme.log is worked out by hand: 12 and 31 of (12, 0, 31) are above 10, 31 above 20."""
    files = {f["title"]: f["body"] for f in _FENCE.finditer(PLUGIN.read_text()) if f["title"]}
    for name, body in files.items():
        (tmp_path / name).write_text(body)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    points = project["entry-points"]
    assert set(points) == {f"pipelog.{part}" for part in ("parsers", "tables", "postmortem.kinds", "detectors", "reporters")}
    assert {f"{module}.py" for group in points.values() for module in group.values()} == {name for name in files if name.endswith(".py")}
    about = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (about / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in given.items()) for group, given in points.items())
    )
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    commands = [run for body in fences(PLUGIN, "console") for run in runs(body)]
    assert commands
    for command, printed in commands:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert printed
        assert shown(printed).fullmatch(done.stdout), done.stdout
