"""Whole runs: every claim of their truth.json, and that the answer does not depend on how the files came here."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pipelog
from pipelog.events import EVENTS, WORD
from pipelog.reading import cite
from pipelog.report import Report
from tests.conftest import FIXTURES

RUNS = sorted(p.parent for p in (FIXTURES / "runs").glob("*/truth.json"))
LATER = {"run-failed", "run-hung", "lost-work", "repeat-offender"}
"""What the post-mortem will say."""
NOT_THE_USER_S = {"truth.json", "README.md"}

each_run = pytest.mark.parametrize("run", RUNS, ids=lambda p: p.name)


def files(run: Path) -> list[Path]:
    """The files of a run that a user would have."""
    return sorted(p for p in run.rglob("*") if p.is_file() and p.relative_to(run).parts[0] not in NOT_THE_USER_S)


def logs(run: Path) -> list[Path]:
    return [p for p in files(run) if p.suffix in (".log", ".txt")]


def copied(run: Path, folder: Path) -> Path:
    """The run without the answers."""
    target = folder / run.name
    for path in files(run):
        place = target / path.relative_to(run)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return target


@functools.cache
def events_of(run: Path) -> pipelog.Events:
    return pipelog.read(*sorted(p for p in run.iterdir() if p.name not in NOT_THE_USER_S))


@functools.cache
def report_of(run: Path) -> Report:
    return pipelog.diagnose(events_of(run))


# ---- the truth

FIGURES: dict[str, tuple[str, ...]] = {
    "bubble": ("metrics", "bubble", "measured"),
    "bubble.ideal": ("metrics", "bubble", "ideal"),
    "step_time_s": ("metrics", "step_time_s", "median"),
    "samples_per_s": ("metrics", "samples_per_s"),
    "stage_imbalance": ("metrics", "stage_imbalance", "value"),
    "memory_skew": ("metrics", "memory", "skew"),
    "world_size": ("topology", "world_size"),
    "pp": ("topology", "pp"),
    "dp": ("topology", "dp"),
    "tp": ("topology", "tp"),
    "micro_batches": ("config", "micro_batches"),
    "last_step": ("run", "last_step"),
    "first_step": ("run", "first_step"),
    "last_checkpoint_step": ("run", "last_checkpoint_step"),
    "lost_steps": ("run", "lost_steps"),
    "attempts": ("run", "attempts"),
}


def figure(document: dict[str, Any], name: str) -> Any:
    if name.startswith("bubble.stage:"):
        stage = int(name.partition(":")[2])
        return next((s["bubble"] for s in document["metrics"]["bubble"]["per_stage"] if s["stage"] == stage), None)
    value: Any = document
    for key in FIGURES[name]:
        value = value[key]
    return len(value) if isinstance(value, list) else value


def truth(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "truth.json").read_text())
    return found


def claims() -> list[tuple[Path, str, Any]]:
    """(run, kind, claim) of all runs."""
    made: list[tuple[Path, str, Any]] = []
    for run in RUNS:
        told = truth(run)
        made += [(run, "figure", claim) for claim in told.get("figures", {}).items()]
        made += [(run, "find", claim) for claim in told.get("must_find", []) if claim["name"] not in LATER]
        made += [(run, "quiet", claim) for claim in told.get("must_not_find", []) if claim not in LATER]
    return made


CLAIMS = claims()


def named(claim: Any) -> str:
    if isinstance(claim, Path):
        return claim.name
    return str(claim[0] if isinstance(claim, tuple) else claim["name"] if isinstance(claim, dict) else claim)


@each_run
def test_status(run: Path) -> None:
    wanted = truth(run)["status"]
    assert report_of(run).run["status"] in (wanted if isinstance(wanted, list) else [wanted])


@each_run
def test_a_failure_is_told_only_where_there_is_one(run: Path) -> None:
    category = truth(run).get("category")
    if category is None:
        assert report_of(run).failure is None
    elif None not in category:
        failure = report_of(run).failure
        assert failure is not None
        lines = {(e["file"], e["line"]) for e in failure["evidence"]}
        assert any(abs(line - a["line"]) <= 1 for _, line in lines for a in truth(run)["anchor"])


@pytest.mark.parametrize(("run", "claim"), [(r, c) for r, kind, c in CLAIMS if kind == "figure"], ids=named)
def test_figure(run: Path, claim: tuple[str, Any]) -> None:
    name, accepted = claim
    low, high = accepted if isinstance(accepted, list) else (accepted, accepted)
    value = figure(report_of(run).to_dict(), name)
    assert value is not None
    assert low <= value <= high


@pytest.mark.parametrize(("run", "claim"), [(r, c) for r, kind, c in CLAIMS if kind == "find"], ids=named)
def test_must_find(run: Path, claim: dict[str, Any]) -> None:
    every = [f for f in report_of(run).findings if f.name == claim["name"]]
    found = [f for f in every if f.severity is not pipelog.Severity.INFO] or every  # what only informs counts where nothing is louder
    assert found
    for place in ("stages", "ranks"):
        if place in claim:
            assert {x for f in found for x in getattr(f.where, place)} == set(claim[place])
    if "links" in claim:
        assert {frozenset(link) for f in found for link in f.where.links} == {frozenset(link) for link in claim["links"]}
    if "step" in claim:
        assert any(f.where.steps and claim["step"][0] <= f.where.steps[0] <= claim["step"][1] for f in found)


@pytest.mark.parametrize(("run", "claim"), [(r, c) for r, kind, c in CLAIMS if kind == "quiet"], ids=named)
def test_must_not_find(run: Path, claim: str) -> None:
    assert [f.title for f in report_of(run).findings if f.name == claim and f.severity is not pipelog.Severity.INFO] == []


@each_run
def test_no_rule_fails_and_every_finding_can_be_looked_up(run: Path) -> None:
    report = report_of(run)
    assert [(o.id, o.reason) for o in report.outcomes if o.status.value == "failed"] == []
    known = {i["path"] for i in report.inputs}
    for finding in report.findings:
        assert finding.evidence or finding.name in LATER, finding.title
        for evidence in finding.evidence:
            assert evidence.file in known
            assert evidence.line is None or evidence.text, (finding.title, evidence)


@each_run
def test_cited_lines_are_the_lines_of_the_file(run: Path) -> None:
    for finding in report_of(run).findings:
        for evidence in finding.evidence:
            path = run / evidence.file
            if evidence.line is not None and path.suffix in (".log", ".txt"):
                line = path.read_bytes().split(b"\n")[evidence.line - 1].decode("utf-8", "replace")
                assert evidence.text is not None
                assert evidence.text.strip("…")[:60] in line or re.sub(r"\x1b\[[0-9;]*m", "", line).startswith(evidence.text[:60])


@each_run
def test_shares_sum_to_one_and_ratios_are_ratios(run: Path) -> None:
    metrics = report_of(run).metrics
    for breakdown in ("phase_breakdown", "step_breakdown"):
        if metrics[breakdown]:
            assert sum(p["share"] for p in metrics[breakdown]) == pytest.approx(1)
            assert all(0 <= p["share"] <= 1 for p in metrics[breakdown])
    bubble = metrics["bubble"]
    for value in (bubble["ideal"], bubble["measured"], bubble["low"], bubble["high"], *(s["bubble"] for s in bubble["per_stage"])):
        assert value is None or 0 <= value <= 1
    if bubble["measured"] is not None and bubble["source"] == "timers":
        assert bubble["low"] <= bubble["measured"] <= bubble["high"] + 1e-9
    assert all(f.cost is None or 0 <= f.cost <= 1 for f in report_of(run).findings)


# ---- how the files came here

UNTOLD = {"inputs", "charts", "name", "pipelog_version", "schema", "notes"}
CLOCK = {"started_at", "ended_at", "duration_s", "at", "ledger"}
"""What is read off stamps. A prefix with times dates lines that had none, and those of the log's own clock are then compared with it."""


def answer(report: Report, *, names: bool = True, hosts: bool = True, times: bool = True) -> dict[str, Any]:
    """What a report says, without what it calls its files (names: False), without hosts and times that only a prefix told."""
    document = {k: v for k, v in report.to_dict().items() if k not in UNTOLD}
    dropped = (
        {"sources", "read"}
        | (set() if names else {"file", "evidence", "fingerprint", "title", "reason"})
        | (set() if hosts else {"hosts", "host", "fingerprint"})
    )
    dropped |= set() if times else CLOCK

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in dropped}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value

    made: dict[str, Any] = plain(document)
    return made


def kept(report: Report) -> list[tuple[int, str]]:
    """The cited lines: number and text."""
    return sorted({(e.line or 0, e.text or "") for f in report.findings for e in f.evidence})


def same(one: pa.Table, other: pa.Table, column: str) -> bool:
    """Whether two tables hold the same in a column; words count, not their numbers, and one nan is like another."""
    wanted = pa.string() if EVENTS.field(column).type == WORD else EVENTS.field(column).type
    mine, its = (table.column(column).cast(wanted) for table in (one, other))
    return bool(mine.equals(its)) or repr(mine.to_pylist()) == repr(its.to_pylist())


def same_events(found: pipelog.Events, run: Path, called: Callable[[str], str]) -> None:
    """Every row and every input is that of the run as it is, and cited lines have the same words: so is what is said of them. called: a file's name there."""
    plain = events_of(run)
    assert [c for c in EVENTS.names if c != "file" and not same(plain.table, found.table, c)] == []
    assert plain.table.column("file").to_pylist() == [called(f) for f in found.table.column("file").to_pylist()]
    assert [(called(i.path), i.kind, i.events, i.notes) for i in found.inputs] == [(i.path, i.kind, i.events, i.notes) for i in plain.inputs]
    wanted = {(e.file, e.line) for f in report_of(run).findings for e in f.evidence if e.line is not None}
    its = {called(i.path): i.path for i in found.inputs}
    texts = cite(found, {(its[file], line) for file, line in wanted})
    assert {(called(file), line): text for (file, line), text in texts.items()} == cite(plain, wanted)


whole_too = [r for r in RUNS if r.name in ("R09", "heavy-stage2", "two-restarts-one-file")]
"""Runs whose report is made from the other form as well: of all others the events are compared, from which it is made."""


@each_run
def test_gzipped_logs(run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path)
    for log in logs(folder):
        log.with_name(log.name + ".gz").write_bytes(gzip.compress(log.read_bytes(), 1))
        log.unlink()
    events = pipelog.read(folder)
    same_events(events, run, lambda file: file.removesuffix(".gz") if file.endswith((".log.gz", ".txt.gz")) else file)
    if run in whole_too:
        report = pipelog.diagnose(events)
        assert answer(report, names=False) == answer(report_of(run), names=False)
        assert kept(report) == kept(report_of(run))


@each_run
def test_logs_compressed_with_zstd(run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path)
    for log in logs(folder):
        with pa.CompressedOutputStream(str(log) + ".zst", "zstd") as out:
            out.write(log.read_bytes())
        log.unlink()
    same_events(pipelog.read(folder), run, lambda file: file.removesuffix(".zst"))


def prefixed(prefix: Callable[[int], bytes]) -> Callable[[bytes], bytes]:
    """Every line with a prefix; a last line without an end keeps its form."""

    def change(data: bytes) -> bytes:
        whole = data.endswith(b"\n")
        lines = (data[:-1] if whole else data).split(b"\n")
        return b"\n".join(prefix(n) + line for n, line in enumerate(lines)) + (b"\n" if whole else b"")

    return change


CHANGES: dict[str, tuple[Callable[[bytes], bytes], dict[str, bool]]] = {
    "pdsh": (prefixed(lambda _: b"@host: "), {"hosts": False}),
    "kubectl --timestamps": (prefixed(lambda n: b"2027-01-02T03:%02d:%02d.%06dZ " % (n // 6000 % 60, n // 100 % 60, n % 100 * 10000)), {"times": False}),
    "torchrun --tee": (prefixed(lambda _: b"[default0]:"), {}),
    "quoted in a ticket": (prefixed(lambda _: b"> "), {}),
    "ends of line of Windows": (lambda data: data.replace(b"\n", b"\r\n"), {}),
    "coloured": (prefixed(lambda n: b"\x1b[3%dm" % (n % 8)), {}),
    "pdsh over torchrun": (prefixed(lambda _: b"@host: [default0]:"), {"hosts": False}),
}  # fmt: skip
PLAIN = [r for r in RUNS if r.name in ("R09", "fail-nan-loss", "heavy-stage2", "llama-note", "truncated-midline", "two-restarts-one-file")]
"""One of a kind: the other runs' logs are like these. R01 has prefixes of its own."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("run", PLAIN, ids=lambda p: p.name)
def test_prefixes_and_ends_of_line(run: Path, change: str, tmp_path: Path) -> None:
    changed, but = CHANGES[change]
    folder = copied(run, tmp_path)
    host = next((r["host"] for r in report_of(run).topology["ranks"] if r["host"]), "node-0").encode()
    for log in logs(folder):
        log.write_bytes(changed(log.read_bytes()).replace(b"@host: ", host + b": "))
    report = pipelog.diagnose(pipelog.read(folder))
    assert answer(report, names=False, **but) == answer(report_of(run), names=False, **but)
    assert [n for n, _ in kept(report)] == [n for n, _ in kept(report_of(run))]


@each_run
def test_files_under_other_names(run: Path, tmp_path: Path) -> None:
    """What a file is, its content tells; only names that state a rank are kept."""
    target = tmp_path / "elsewhere"
    target.mkdir()
    for number, path in enumerate(files(run)):
        rank = re.search(r"(?:\d{14}_)?rank\d+", path.name)
        suffix = "".join(path.suffixes[-1:]) if path.suffix == ".json" else ""
        shutil.copyfile(path, target / f"{rank.group(0) if rank else 'x'}.{number:02}{suffix or '.dat'}")
    report = pipelog.diagnose(pipelog.read(target))
    assert answer(report, names=False) == answer(report_of(run), names=False)


@each_run
def test_single_files_instead_of_a_folder(run: Path) -> None:
    events = pipelog.read(*files(run))
    plain = {Path(i.path).name: i.path for i in events_of(run).inputs}
    same_events(events, run, lambda file: plain[Path(file).name])
    if run in whole_too:
        report = pipelog.diagnose(events)
        assert answer(report, names=False) == answer(report_of(run), names=False)
        assert kept(report) == kept(report_of(run))


@pytest.mark.parametrize("run", whole_too, ids=lambda p: p.name)
def test_through_parquet(run: Path, tmp_path: Path) -> None:
    """The event table is a whole input again; only the words of cited lines are not in it."""
    events_of(run).write(tmp_path / "events.parquet")
    report = pipelog.diagnose(pipelog.read(tmp_path / "events.parquet"))
    again, before = answer(report), answer(report_of(run))
    for document in (again, before):
        for finding in document["findings"]:
            for evidence in finding["evidence"]:
                evidence.pop("text")
        for cited in (document["failure"] or {}).get("evidence", []) + (document["failure"] or {}).get("consequences", []):
            cited.pop("text")
            cited.pop("context", None)
    assert again == before


@each_run
def test_rows_and_inputs_go_through_parquet(run: Path, tmp_path: Path) -> None:
    """Of every run: the report is made from them."""
    plain = events_of(run)
    plain.write(tmp_path / "events.parquet")
    found = pipelog.read(tmp_path / "events.parquet")
    assert [c for c in EVENTS.names if not same(plain.table, found.table, c)] == []
    assert [i for i in found.inputs if i.kind != "events"] == plain.inputs


@each_run
def test_the_order_of_rows_does_not_matter(run: Path) -> None:
    """Rows of one file may come in any order: parsers give theirs one after another, not line by line."""
    events = events_of(run)
    order = np.random.default_rng(7).permutation(events.table.num_rows)
    report = pipelog.diagnose(pipelog.Events(events.table.take(pa.array(order)).combine_chunks(), events.inputs, events.roots))
    assert answer(report) == answer(report_of(run))


@pytest.mark.parametrize("run", [r for r in RUNS if (r / "traces").exists()], ids=lambda p: p.name)
def test_a_later_hour_changes_nothing(run: Path) -> None:
    """Times of traces shifted by a day and a nanosecond: no figure depends on when it was."""
    events = events_of(run)
    table = events.table
    for name in ("start_ns", "launch_ns"):
        moved = pa.compute.add(table.column(name), pa.scalar(86_400 * 10**9 + 1, pa.int64()))
        table = table.set_column(table.schema.get_field_index(name), name, moved)
    report = pipelog.diagnose(pipelog.Events(table, events.inputs, events.roots))
    assert answer(report, times=False) == answer(report_of(run), times=False)


def test_paths_in_another_order() -> None:
    """Several paths, in whatever order they are given."""
    run = next(r for r in RUNS if r.name == "per-rank-logs-monitors")
    first = answer(report_of(run), names=False)
    for order in itertools.islice(itertools.permutations(p for p in run.iterdir() if p.name not in NOT_THE_USER_S), 3):
        assert answer(pipelog.diagnose(pipelog.read(*order)), names=False) == first
