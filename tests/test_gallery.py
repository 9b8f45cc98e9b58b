"""reports/: the index names every report with its verdict, each link leads to a file, and all of it stays small."""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_html import Tags

sys.path.insert(0, str(ROOT / "tools"))
import gallery

REPORTS = ROOT / "reports"
PAGE = (REPORTS / "index.html").read_text(encoding="utf-8")
ENTRIES = gallery.entries(REPORTS)


def test_the_page_is_sound_and_every_link_leads_to_a_file() -> None:
    tags = Tags(PAGE)
    assert not tags.wrong
    assert not tags.open
    assert "<script" not in PAGE
    files = {f.partition("=")[2] for f in tags.fetched}
    assert files
    assert [f for f in files if not (REPORTS / f).is_file()] == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_every_report_has_its_card_with_the_words_of_today(entry: gallery.Entry) -> None:
    card = re.search(rf'(?s)<li id="{re.escape(entry.name)}">(.*?)</li>', PAGE)
    assert card, "make reports"
    said = unescape(card[1])
    assert entry.word in said
    assert entry.kind in said
    assert entry.sentence[:200] in said
    assert entry.picture
    assert {name for name, _ in entry.links} >= {"Markdown", "terminal", "JSON"}


def test_every_kind_of_end_is_shown() -> None:
    assert {e.group for e in ENTRIES} == set(range(len(gallery.GROUPS)))


def test_all_of_it_stays_small() -> None:
    assert sum(p.stat().st_size for p in REPORTS.iterdir()) < 10_000_000
    for name in re.findall(r'(?:src|srcset)="(docs/[^"]+)"', (ROOT / "README.md").read_text()):
        assert (ROOT / name).is_file()
        assert Path(name).suffix == ".png"
