"""Write reports/index.html: every report with its verdict, its picture and links to its forms. Read from what stands in the folder, nothing is analyzed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelog._version import __version__
from pipelog.findings import Severity
from pipelog.report import Report
from pipelog.reporters.html import environment
from pipelog.reporters.verdict import verdict

ROOT = Path(__file__).resolve().parents[1]
FORMS = (("page", ".html"), ("Markdown", ".md"), ("terminal", ".txt"), ("JSON", ".json"))
GROUPS = ("Failed", "Hung", "Ended from outside", "Slow", "Other runs", "Comparisons")
_BY_WORD = {"FAILED": 0, "HUNG": 1, "CANCELLED": 2, "TIME LIMIT": 2, "PREEMPTED": 2, "SLOW": 3}


@dataclass(frozen=True, slots=True)
class Entry:
    """A report of the gallery: what its card says, its picture, its files as (words, name), and the file that the picture leads to."""

    name: str
    group: int
    word: str
    tone: str
    kind: str
    sentence: str
    picture: str | None
    links: tuple[tuple[str, str], ...]

    @property
    def first(self) -> str:
        """The page where it is there, else the Markdown."""
        return self.links[0][1]


def entries(folder: Path) -> list[Entry]:
    """All reports and comparisons of the folder, by group and name."""
    made = []
    for place in sorted(folder.glob("*.json")):
        document = json.loads(place.read_text(encoding="utf-8"))
        made.append(_comparison(place, document) if document["schema"].startswith("pipelog.diff/") else _report(place))
    return sorted(made, key=lambda e: (e.group, e.name))


def _report(place: Path) -> Entry:
    report = Report.from_json(place.read_text(encoding="utf-8"))
    said = verdict(report)
    loud = [f.name for f in report.findings if f.severity is not Severity.INFO]
    kind = report.failure["category"] if report.failure else ", ".join(dict.fromkeys(loud)) or "no problem"
    return Entry(place.stem, _BY_WORD.get(said.word, 4), said.word, said.tone, kind, said.sentence, *_files(place))


def _comparison(place: Path, document: dict[str, Any]) -> Entry:
    said = document["verdict"]
    return Entry(place.stem, 5, said["word"], said["tone"], "pipelog diff", said["sentence"], *_files(place))


def _files(place: Path) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    picture = place.with_suffix(".png")
    links = tuple((text, f"{place.stem}{suffix}") for text, suffix in FORMS if place.with_suffix(suffix).exists())
    return picture.name if picture.exists() else None, links


def write(folder: Path) -> None:
    """The page beside the reports."""
    every = entries(folder)
    groups = [(title, mine) for n, title in enumerate(GROUPS) if (mine := [e for e in every if e.group == n])]
    template = environment().from_string((ROOT / "tools" / "gallery.html.jinja").read_text(encoding="utf-8"))
    (folder / "index.html").write_text(template.render(groups=groups, version=__version__) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "reports")
