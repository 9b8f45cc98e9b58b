"""Labelled cases of failures: how they are read, written to a folder, and compared with what a report says.

A line carries with it whether it is an anchor of the truth, so that the truth knows its place whatever became of the file around it.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

import pipelog

_LOGS = (".log", ".out", ".txt", ".err")
_BESIDE = {"shm_usage.txt", "listing.txt"}
"""Text that is no log."""
_NOT_THE_USER_S = {"truth.json", "measured.json", "README.md", "traces", "monitor"}
_LEADS = (
    ("utc", r"\d{4}-\d\d-\d\dT[\d:.]+Z (?:std(?:out|err) F )?"),
    ("label", r" *\d+: ?"),
    ("host", r"(?!srun:|slurmstepd|WARNING:|ERROR:|INFO:|Traceback|steps:|\d+:)[A-Za-z0-9][\w.-]*: ?"),
    ("tee", r"\[default\d+\]:"),
)
_ENDED = ("cancelled", "preempted", "time-limit")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log without its newline. anchor: the truth accepts it as evidence."""

    text: str
    anchor: bool = False

    def saying(self, text: str) -> Line:
        """Another text at the same place."""
        return Line(text, self.anchor)


@dataclass(frozen=True, slots=True)
class Case:
    """logs by name; other files as they are; truth after contract.md, without anchors, and with two words more.

    or_none: claims among ranks, stages and hosts where it is right to say nothing. weak: the log of the one that began it is missing: it is
    right to know nothing, or an echo; to name another rank, to know a cause or to be sure is wrong. how: what was done to it. ended: the last line of each log has its newline.
    """

    name: str
    logs: Mapping[str, tuple[Line, ...]]
    truth: Mapping[str, Any]
    other: Mapping[str, bytes] = field(default_factory=dict)
    how: tuple[str, ...] = ()
    packed: str = ""
    ended: bool = True

    def write(self, folder: Path) -> None:
        """Write the files as a user would have them."""
        for name, data in self.other.items():
            _put(folder / name, data)
        for name, lines in self.logs.items():
            data = "\n".join(line.text for line in lines).encode("utf-8", "surrogateescape") + b"\n" * self.ended
            if self.packed == ".gz":
                data = gzip.compress(data)
            elif self.packed == ".zst":
                data = pa.compress(data, "zstd", asbytes=True)
            _put(folder / f"{name}{self.packed}", data)

    def anchors(self) -> list[tuple[str, int]]:
        """(file, line) of all anchors."""
        return [(f"{name}{self.packed}", n) for name, lines in self.logs.items() for n, line in enumerate(lines, 1) if line.anchor]

    def lines(self) -> Iterator[Line]:
        """The lines of all logs."""
        for lines in self.logs.values():
            yield from lines

    def text(self) -> str:
        """All logs as one text."""
        return "\n".join(line.text for line in self.lines())

    def each(self, change: Callable[[str], str]) -> Case:
        """Every line changed by itself."""
        return replace(self, logs={name: tuple(line.saying(change(line.text)) for line in lines) for name, lines in self.logs.items()})

    def each_file(self, change: Callable[[tuple[Line, ...]], tuple[Line, ...]]) -> Case:
        """The lines of every file changed together."""
        return replace(self, logs={name: change(lines) for name, lines in self.logs.items()})

    def claiming(self, **truth: Any) -> Case:
        """With other claims; None drops one."""
        return replace(self, truth={k: v for k, v in {**self.truth, **truth}.items() if v is not None})


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def load(folder: Path) -> Case:
    """Read a labelled case. Traces and monitors are left out: they tell nothing of a failure."""
    truth = json.loads((folder / "truth.json").read_text())
    places = {(a["file"], a["line"]) for a in truth.pop("anchor", [])}
    logs, other = {}, {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if PurePosixPath(name).parts[0] in _NOT_THE_USER_S:
            continue
        data = path.read_bytes()
        plain = name.removesuffix(".gz")
        if not plain.endswith(_LOGS) or path.name in _BESIDE:
            other[name] = data
            continue
        text = (gzip.decompress(data) if plain != name else data).decode("utf-8", "surrogateescape")
        logs[plain] = tuple(Line(line, (name, n) in places) for n, line in enumerate(text.removesuffix("\n").split("\n"), 1))
    return Case(folder.name, logs, truth, other)


# ---- what stands before the lines, and who wrote them


@functools.cache
def leads(lines: tuple[Line, ...]) -> tuple[str, ...]:
    """Names of the prefixes that most lines have, outermost first."""
    texts = [line.text for line in lines if line.text.strip()]
    found: list[str] = []
    while len(found) < len(_LEADS):
        for name, pattern in _LEADS:
            share = 0.5 if name != "tee" else 0.1
            heads = [m.group() for t in texts if (m := re.match(pattern, t))]
            few = name == "utc" or len(set(heads)) <= max(2, len(heads) // 3)
            if name not in found and few and len(heads) >= max(3, share * len(texts)):
                found.append(name)
                texts = [re.sub(f"^{pattern}", "", t) for t in texts]
                break
        else:
            break
    return tuple(found)


def parted(lines: tuple[Line, ...]) -> Callable[[str], tuple[str, str]]:
    """A function that parts a line of this file into its prefix and its own text."""
    patterns = dict(_LEADS)
    pattern = re.compile("".join(f"(?:{patterns[name]})?" for name in leads(lines)))

    def part(text: str) -> tuple[str, str]:
        match = pattern.match(text)
        assert match is not None
        return text[: match.end()], text[match.end() :]

    return part


_RANK = re.compile(r"\[rank(\d+)\]:|^\[Rank (\d+)\] |\] \[Rank (\d+)\] |RANK=(\d+) STAGE=")
_CONTINUES = re.compile(r"Exception raised from |frame #\d+: |terminate called after|  what\(\): |$")
LAUNCHER = re.compile(
    r"\[(?:launch|runner)\.py:|Killing subprocess|Main process received|exits (?:with return code|successfully)|srun: |slurmstepd|pdsh@"
    r"|torch[/.]distributed[/.](?:elastic|run)|CalledProcessError"
)
"""Lines of launchers and schedulers."""
TABLE = re.compile(
    r"ChildFailedError|^=====|^-----|^(?:Failures|Root Cause \(first)|^\[\d+\]:$|^  (?:time|host|rank|exitcode|error_file|traceback) +:|<NO_OTHER|\.py FAILED$"
)
"""Lines of torchrun's table."""


def ranks_of(lines: tuple[Line, ...]) -> list[int | None]:
    """The rank that wrote each line, as far as it says so; lines of C++ that follow one of a rank are its own."""
    part = parted(lines)
    out: list[int | None] = []
    last: int | None = None
    for line in lines:
        lead, body = part(line.text)
        match = None if LAUNCHER.search(body) else _RANK.search(body) or re.search(r"\[default(\d+)\]:", lead)
        if match:
            last = int(next(g for g in match.groups() if g is not None))
            out.append(last)
        elif last is not None and _CONTINUES.match(body):
            out.append(last)
        else:
            last = None
            out.append(0 if re.match(r"steps: \d+ loss", body) else None)
    return out


def is_launcher(lines: tuple[Line, ...]) -> list[bool]:
    """Whether a line is the launcher's or the scheduler's: its own lines, its traceback and its table."""
    part = parted(lines)
    out: list[bool] = []
    inside = False
    bodies = [part(line.text)[1] for line in lines]
    for n, body in enumerate(bodies):
        if body.startswith("Traceback") and any(re.search(r"elastic/|runpy\.py|/torchrun|/launcher/launch\.py", b) for b in bodies[n + 1 : n + 5]):
            inside = True
        elif inside and re.match(r"(?:\[rank\d+\]: )?[A-Za-z]", body) and not TABLE.search(body) and not LAUNCHER.search(body):
            inside = False
        out.append(inside or LAUNCHER.search(body) is not None or (TABLE.search(body) is not None and not body.startswith("----")))
    return out


# ---- judging


def diagnosed(case: Case, folder: Path) -> dict[str, Any]:
    """What pipelog says of a case, written into *folder*."""
    case.write(folder)
    return pipelog.diagnose(pipelog.read(folder)).to_dict()


def deviations(case: Case, report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(claim, what is wrong) of every claim of the truth that the report does not hold."""
    return [(kind, what) for kind, held, what in _claims(case, report) if not held]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _claims(case: Case, report: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    truth, failure = case.truth, report["failure"]
    status = report["run"]["status"]
    broken = [(r["id"], r["reason"]) for r in report["rules"] if r["status"] == "failed"]
    broken += [(i["path"], s["why"]) for i in report["inputs"] for s in i["skipped"] if "pipelog failed on it" in s["why"]]
    yield "rules", not broken, f"failed: {broken}"
    if truth.get("weak"):
        yield from _weak(truth, failure)
        return
    yield "status", status in _listed(truth["status"]), f"status {status!r}, truth {truth['status']!r}"
    got = failure["category"] if failure else None
    if truth.get("category"):
        known = f", cause_known {failure['cause_known']}" if failure else ""
        yield "category", got in truth["category"], f"category {got!r}{known}, truth {truth['category']}: {failure and failure['title']!r}"
        yield from _places(case, failure)
    else:
        yield "category", failure is None, f"claims a failure where none is: {got!r}: {failure and failure['title']!r}"
    yield from _findings(case, report, status)


def _places(case: Case, failure: Mapping[str, Any] | None) -> Iterator[tuple[str, bool, str]]:
    truth, anchors = case.truth, case.anchors()
    if anchors and failure:
        said = [(e["file"], e["line"]) for e in failure["evidence"]]
        hit = any(_same(f, a) and n is not None and abs(n - m) <= 1 for f, n in said for a, m in anchors)
        yield "anchor", hit, f"evidence {said[:4]}, truth {anchors[:4]}: {failure['title']!r}"
    for who in ("ranks", "stages", "hosts"):
        if truth.get(who) and failure:
            said = set(failure[who] or [])
            held = said <= set(truth[who]) and (bool(said) or who in truth.get("or_none", ()))
            yield who, held, f"{who} {sorted(said)}, truth {truth[who]}: {failure['title']!r}"
    if truth.get("cause_known") is False:
        yield "restraint", not (failure or {}).get("cause_known"), f"claims to know a cause: {failure and failure['title']!r}"


def _weak(truth: Mapping[str, Any], failure: Mapping[str, Any] | None) -> Iterator[tuple[str, bool, str]]:
    if failure is None:
        return
    title = failure["title"]
    for who in ("ranks", "stages", "hosts"):
        said = set(failure[who] or [])
        yield (
            who,
            not truth.get(who) or said <= set(truth[who]),
            f"{who} {sorted(said)} are no cause, their log is missing: {truth.get(who)}: {title!r}",
        )
    yield "restraint", not failure["cause_known"], f"claims to know a cause whose log is missing: {title!r}"
    yield "confidence", failure["confidence"] != "high", f"is sure where the log of the first is missing: {title!r}"


def _findings(case: Case, report: Mapping[str, Any], status: str) -> Iterator[tuple[str, bool, str]]:
    findings, truth = report["findings"], case.truth
    loud = {f["name"] for f in findings if f["severity"] in ("warning", "error")}
    for want in truth.get("must_find", []):
        yield "finds", want["name"] in {f["name"] for f in findings}, f"no finding {want['name']}"
    for name in truth.get("must_not_find", []):
        yield "quiet", name not in loud, f"false claim: {[f['title'] for f in findings if f['name'] == name]}"
    bad = [f["title"] for f in findings if f["severity"] == "error"]
    if status in _ENDED or case.name.startswith("ok-"):
        yield "quiet", not bad, f"an error where nothing failed: {bad}"


def _same(a: str, b: str) -> bool:
    one, other = PurePosixPath(a).parts, PurePosixPath(b).parts
    n = min(len(one), len(other))
    return one[-n:] == other[-n:]
