"""What would pay, on the pages: the figures are those of the JSON, what is not known stays away, and advice names no second number."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser

from pipelog.detectors.pl101_high_bubble_ratio import high_bubble_ratio
from pipelog.detectors.pl102_few_micro_batches import few_micro_batches
from pipelog.replay.cited import cited
from pipelog.replay.room import Room, of_doubling, room
from pipelog.replay.simulate import Costs
from pipelog.replay.what_if import Change, WhatIf
from pipelog.report import Report
from pipelog.reporters import markdown, text
from pipelog.reporters._costs import costs
from pipelog.reporters._pays import believed, lines, no_replay, pays
from pipelog.reporters.html import render
from pipelog.tables import Tables
from pipelog.tables.bubble import Bubble
from pipelog.tables.capacity import Capacity
from pipelog.tables.config import Config
from pipelog.tables.memory import StageMemory
from pipelog.tables.topology import Topology
from tests.conftest import FIXTURES
from tests.once import report_of
from tests.test_html import HOSTILE, Tags

WITH = ("heavy-stage2", "comm-stall-link-1-2", "dp2-pp2-slow-replica", "slow-dataloader")
WITHOUT = ("R01", "memory-skew", "straggler-from-step-20")


@cache
def document(run: str) -> str:
    return report_of(FIXTURES / "runs" / run).to_json()


def report(run: str) -> Report:
    return Report.from_json(document(run))


def metrics(run: str) -> dict[str, Any]:
    return json.loads(document(run))["metrics"]  # type: ignore[no-any-return]


def section(page: str) -> str:
    found = re.search(r'<section id="what-would-pay".*?</section>', page, re.DOTALL)
    return found[0] if found else ""


def rows(part: str, name: str) -> list[list[str]]:
    """The cells of the table with this name as plain text."""
    found = re.search(rf'aria-label="{name} \(table\)">.*?</table>', part, re.DOTALL)
    lines_ = re.findall(r"<tr>(.*?)</tr>", found[0] if found else "", re.DOTALL)[1:]
    return [[plain(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL)] for line in lines_]


def plain(part: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split())


def number(cell: str) -> float:
    """The first number of a cell in seconds, or as a share."""
    value, unit = re.match(r"([−\d.,]+) (ms|s|%|µs)", cell).groups()  # type: ignore[union-attr]
    return float(value.replace("−", "-").replace(",", "")) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "%": 1e-2}[unit]


# ---- figures


@pytest.mark.parametrize("run", WITH)
def test_figures_of_the_page_are_those_of_the_json(run: str) -> None:
    part, told = section(render(report(run))), metrics(run)["what_if"]
    by_name = {c["change"]: c for c in told}
    shown = rows(part, "Changes that would pay") + rows(part, "Settings that are not advised")
    assert [r[0].split(" ")[0] for r in shown]
    for cells in shown:
        name = max((n for n in by_name if cells[0].startswith(n)), key=len)
        change = by_name.pop(name)
        assert cells[0] == " ".join(filter(None, (name, change["setting"])))
        assert number(cells[1]) == pytest.approx(change["step_time_s"], rel=0.006)
        assert number(cells[3]) == pytest.approx(change["bubble"], abs=0.0006)
        assert number(cells[4]) == pytest.approx(change["compute_s"], rel=0.006)
        assert (cells[5] == "not known") == (change["peak_bytes"] is None)
        if name != "now":
            assert number(cells[2]) == pytest.approx(abs(change["gain"]), abs=0.0006)
            assert ("less" in cells[2]) == (change["gain"] >= 0)
            assert cells[6]
    assert not by_name, "a setting of the JSON is not on the page"


@pytest.mark.parametrize("run", WITH)
def test_advised_changes_stand_first_by_gain_and_others_are_folded_with_a_reason(run: str) -> None:
    given = pays(report(run))
    assert given
    told = [c for c in metrics(run)["what_if"] if c["advised"]]
    assert [p.name for p in given.advised] == [c["change"] for c in sorted(told, key=lambda c: -c["gain"])]
    assert all(p.price for p in given.others)
    part = section(render(report(run)))
    fold = part.index("<details>")
    assert all(part.index(html.escape(p.name)) < fold for p in given.advised)
    assert rows(part[fold:], "Settings that are not advised")


@pytest.mark.parametrize("run", WITH)
def test_costs_and_critical_path_are_those_of_the_json(run: str) -> None:
    replay = metrics(run)["replay"]
    part = section(render(report(run)))
    shown = rows(part, "What each part costs") + rows(part, "Smaller effects")
    assert sorted(number(r[1]) for r in shown) == pytest.approx(sorted(e["cost"] for e in replay["effects"]), abs=0.0006)
    assert f"S = {replay['slowdown']:.2f}" in plain(part)
    first = replay["critical"][0]
    assert f"{first['share']:.1%}".replace("%", " %") in plain(part)


def test_where_the_path_lies_is_the_sum_over_a_stage() -> None:
    given = report("heavy-stage2")
    given.metrics["replay"]["critical"] = [
        {"stage": 2, "link": None, "instruction": "backward", "share": 0.5},
        {"stage": None, "link": [1, 2], "instruction": "activation", "share": 0.3},
        {"stage": 2, "link": None, "instruction": "forward", "share": 0.2},
    ]
    told = costs(given)
    assert told
    assert told.path == (
        "The critical path of the middle recorded step lies on stage 2 for 70.0 % of its length. The largest parts: "
        "50.0 % backward passes of stage 2, 30.0 % activation transfers of link 1–2, 20.0 % forward passes of stage 2."
    )


def test_short_forms_name_the_three_best_with_price_and_memory() -> None:
    given = report("heavy-stage2")
    told = [c for c in metrics("heavy-stage2")["what_if"] if c["advised"]][:3]
    assert len(told) == 3
    for render_ in (text.render, markdown.render):
        said = " ".join(render_(given).split()).replace("\\", "").replace("\N{NO-BREAK SPACE}", " ")
        places = [said.index(f"→ {c['text']}") for c in told]
        assert places == sorted(places)
        assert said.count("Peak memory:") == 3
        assert all(c["setting"] in said for c in told)
        assert said.count("Replayed on its own durations") == 1
    assert len(markdown.render(given).splitlines()) < 60


# ---- nothing where there is nothing


@pytest.mark.parametrize("run", WITHOUT)
def test_no_replay_no_section(run: str) -> None:
    given = report(run)
    assert metrics(run)["replay"] is None
    page = render(given)
    assert not section(page)
    assert 'href="#what-would-pay"' not in page
    for said in (text.render(given), markdown.render(given)):
        assert "What would pay" not in said
        assert "Replay" not in said
    if 'id="time"' in page and (given.topology["pp"] or 1) > 1:
        assert page.count(no_replay(given)) == 1


def unbelieved(reason: str = "half of the step's micro-batches predict it with an error of 30.2%") -> Report:
    given = report("heavy-stage2")
    given.metrics["replay"] |= {"believed": False, "reason": reason, "predicted_error": {"median": 0.302, "p90": 0.4, "n": 2, "halves": "steps"}}
    given.metrics["what_if"] = []
    return given


def test_a_replay_that_is_not_believed_says_why_and_predicts_nothing() -> None:
    given = unbelieved()
    part = section(render(given))
    assert "No what-if: half of the step's micro-batches predict it with an error of 30.2% (limit 5.0 %)" in plain(part)
    assert "Changes that would pay" not in part
    assert "With care" not in part  # it misses other steps, not its own
    assert not lines(given)
    assert "No what-if: half of the step's micro-batches" in text.render(given)
    given.metrics["replay"]["error"] = 0.07
    assert "With care: this replay is 7.0 % off" in plain(section(render(given)))


def test_the_limit_of_recording_is_another() -> None:
    assert "(limit 15.0 %)" in believed({"believed": False, "reason": "too far apart", "error": 0.01, "recording": 0.26})
    assert "(limit 5.0 %)" in believed({"believed": False, "reason": "too far off", "error": 0.06, "recording": 0.02})
    assert believed(None) == ""


def test_a_failed_run_has_it_on_the_page_only() -> None:
    given = report("heavy-stage2")
    given.failure = report("fail-sigkill-rank3").failure
    given.run["status"] = "failed"
    assert given.failure
    assert section(render(given))
    assert "What would pay" not in text.render(given) + markdown.render(given)


def test_fields_that_may_be_absent_may_be_absent() -> None:
    given = report("heavy-stage2")
    given.metrics["what_if"] = [
        {"change": "micro_batches=24", "step_time_s": 0.8, "gain": 0.04, "basis": "formula", "advised": True},
        {"change": "unknown", "step_time_s": None, "gain": None, "basis": "formula"},
    ]
    assert "micro_batches=24: 800 ms, 4.0 % less time per sample" in lines(given)[0]
    part = section(render(given))
    assert "unknown" not in part
    assert [r[1] for r in rows(part, "Changes that would pay")] == ["800 ms"]


def test_a_cause_that_would_give_more_than_any_setting_is_named() -> None:
    said = pays(report("comm-stall-link-1-2"))
    assert said
    bound = max((c for c in metrics("comm-stall-link-1-2")["what_if"] if c["kind"] == "bound"), key=lambda c: c["gain"])
    assert f"{bound['change']}, at most {bound['gain'] * 100:.1f} % less" in " ".join(said.says)


# ---- hostile text


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_inert(hostile: str) -> None:
    given = report("heavy-stage2")
    for change in given.metrics["what_if"]:
        change |= {"change": change["change"] + hostile, "setting": hostile, "price": hostile, "text": hostile}
    given.metrics["replay"] |= {"reason": hostile, "believed": False}
    for effect in given.metrics["replay"]["effects"]:
        effect["kind"] = hostile
    for on in given.metrics["replay"]["critical"]:
        on["instruction"] = hostile
    page = render(given)
    tags = Tags(page)
    assert not tags.wrong
    assert not tags.fetched
    assert page.count("<script") == 3
    assert "1337" not in page
    part = section(page)
    assert "<img" not in part
    assert "<b>" not in part
    odd = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
    assert not re.search(odd, part)
    assert not re.search(odd, text.render(given))
    assert not re.search(r"(?<!\\)<(?:script|img|b)\b", markdown.render(given))


# ---- advice


def test_advice_and_what_if_name_the_same_number() -> None:
    for run in ("heavy-stage2", "comm-stall-link-1-2"):
        told = {c["change"]: c for c in metrics(run)["what_if"]}
        advice = [a for f in json.loads(document(run))["findings"] if f["id"] in ("PL101", "PL102", "PL201") for a in f["advice"]]
        replayed = [a["expected"] for a in advice if "(replay)" in (a["expected"] or "")]
        assert replayed
        for expected in replayed:
            for gain in re.findall(r"([\d.]+) % (?:less|more) time per sample", expected):
                assert any(f"{abs(c['gain']) * 100:.1f}" == gain for c in told.values()), expected
        assert not [a for a in advice if "ideal bubble" in (a["expected"] or "") and "halve" in a["action"]]


@pytest.mark.parametrize(
    ("run", "rule", "change"),
    [
        ("comm-stall-link-1-2", "PL401", "link 1-2 as the others"),
        ("slow-dataloader", "PL105", "batches ready in time"),
        ("dp2-pp2-slow-replica", "PL202", "replicas equal"),
    ],
)
def test_a_cause_is_told_with_what_its_removal_would_give(run: str, rule: str, change: str) -> None:
    predicted = next(c for c in metrics(run)["what_if"] if c["change"] == change)
    (found,) = (f for f in json.loads(document(run))["findings"] if f["id"] == rule)
    expected = found["advice"][0]["expected"]
    assert expected.startswith(f"{change}, at best: ")
    assert f"{predicted['gain'] * 100:.1f} % less time per sample" in expected


@pytest.mark.parametrize(("halved", "plain", "said"), [(0.1, 0.2, "10.0 % less"), (-0.3, 0.2, "20.0 % less"), (None, 0.2, "")])
def test_more_micro_batches_are_not_proposed_in_a_size_that_the_replay_speaks_against(halved: float | None, plain: float, said: str) -> None:
    every = [replace(changed("now", 100e6, 0.0, 0.4), advised=False), changed("micro_batches=8", 160e6, plain, 0.3, samples=2.0)]
    every += [changed("micro_batches=8, micro_batch_size=1", 100e6 * (1 - halved), halved, 0.3)] if halved is not None else []
    (found,) = few_micro_batches(
        Bubble(3 / 7), Topology(4, 4, 1, 1), Config(micro_batches=4, micro_batch_size=2), cast("Tables", Given(what_if=every))
    )
    expected = found.advice[0].expected or ""
    assert ("global batch doubles" in expected) == (halved is not None and halved < 0)
    assert said in expected.rpartition("; replayed: ")[2] if said else "replayed" not in expected


class Given(dict[str, Any]):
    """Stands for `Tables`."""


def changed(name: str, step_ns: float, gain: float, bubble: float, **more: Any) -> WhatIf:
    change = Change(name, Costs(1.0, 2.0), 4, 8, "advice", **more)
    return WhatIf(change, step_ns, gain, bubble, 1e6, (4.0, 3.0, 2.0, 1.0), None, 48, Room(more=False), gain > 0.02)


def test_a_citation_is_the_change_that_was_asked_for() -> None:
    now = replace(changed("now", 100e6, 0.0, 0.4), advised=False)
    found = [now, changed("partition=3/1", 90e6, 0.1, 0.35), changed("micro_batches=16", 180e6, 0.1, 0.3, samples=2.0)]
    tables: Any = Given(what_if=found)
    assert str(cited(tables, "partition=")) == "100 ms → 90.0 ms a step, 10.0 % less time per sample, bubble 40.0 % → 35.0 % (replay)"
    assert "a step for 2 times the samples" in str(cited(tables, "micro_batches=16"))
    assert cited(tables, "micro_batches=1") is None
    assert cited(tables, "now") is None
    assert cited(Given(), "micro_batches=16") is None  # type: ignore[arg-type]
    assert np.isclose(cited(tables, "stages equal", "partition=").gain, 0.1)  # type: ignore[union-attr]


def advised(micro_batch_size: int, *found: WhatIf) -> list[str]:
    """The advice of PL101 where the schedule explains all: four stages, eight micro-batches."""
    bubble = Bubble(ideal=3 / 11, measured=0.28, low=0.28, high=0.28, source="timers", scope="run", basis="timer", where=[("train.log", 3)])
    tables: Any = Given(what_if=[changed("now", 100e6, 0.0, 0.4), *found])
    every = high_bubble_ratio(bubble, Topology(pp=4), Config(micro_batches=8, micro_batch_size=micro_batch_size), tables)
    return [f"{a.action}: {a.expected}" for f in every for a in f.advice]


def test_more_micro_batches_are_advised_by_the_replay_where_it_looked_at_them() -> None:
    same = "micro_batches=16, micro_batch_size=1"
    assert "100 ms → 90.0 ms a step, 10.0 % less" in advised(2, changed(same, 90e6, 0.1, 0.35))[0]
    assert advised(2, changed(same, 99e6, 0.01, 0.39)) == []
    assert "ideal bubble 27.3 % → 15.8 %" in advised(2)[0]


def test_a_micro_batch_that_cannot_be_halved_is_not_halved() -> None:
    assert advised(3)[0].startswith("double the accumulation steps (8 → 16): ideal bubble 27.3 % → 15.8 %; the global batch doubles")


# ---- in a browser


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_section_needs_no_script_and_fits_the_screen(chromium: Browser, tmp_path: Any, width: int) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(report("heavy-stage2")), encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False, viewport={"width": width, "height": 900}, color_scheme="dark")
    page = context.new_page()
    page.goto(file.as_uri())
    part = page.locator("#what-would-pay")
    assert part.locator("tbody tr").first.is_visible()
    assert part.locator("summary").first.is_visible()
    box = part.locator("table.cards").first.bounding_box()
    assert box
    assert box["x"] + box["width"] <= width
    context.close()


def with_memory(peaks: list[int], slope: float | None, capacity: int | None) -> Any:
    """Stages that need so many GiB at their peak, *slope* GiB of them for each micro-batch held, on devices of *capacity* GiB."""
    stages = StageMemory(pd.DataFrame({"stage": range(len(peaks)), "peak_bytes": [n * GIB for n in peaks]}), slope * GIB if slope else None)
    return Given(stage_memory=stages, **({"capacity": Capacity(capacity * GIB, capacity * GIB, "nvidia-smi.txt", 9)} if capacity else {}))


GIB = 2**30


@pytest.mark.parametrize(
    ("capacity", "fits", "said"),
    [
        (40, True, "stage 0 then needs 32.0 GiB of 40.0 GiB, 8.00 GiB left"),
        (34, False, "does not fit: stage 0 then needs 32.0 GiB of 34.0 GiB, of which 92.0 % can be counted on"),
        (None, None, "stage 0 then needs 32.0 GiB; the capacity of its device is not known"),
    ],
)
def test_twice_the_micro_batches_need_room_where_a_stage_then_holds_more(capacity: int | None, fits: bool | None, said: str) -> None:
    """Four stages with m=2 hold 2, 2, 2, 1 micro-batches, with m=4 4, 3, 2, 1: stage 0 two more, of 4 GiB each."""
    found = of_doubling(with_memory([24, 24, 24, 20], 4, capacity), 4, 2)
    assert (found.fits, str(found)) == (fits, said)
    assert found.peak_bytes == (32 * GIB, 28 * GIB, 24 * GIB, 20 * GIB)


def test_twice_the_micro_batches_hold_no_more_where_there_are_as_many_as_stages() -> None:
    found = of_doubling(with_memory([24, 20, 16, 12], 4, 25), 4, 4)
    assert (found.more, str(found)) == (False, "")


def test_what_is_left_is_told_where_a_change_takes_an_unknown_part_of_it() -> None:
    found = room(with_memory([24, 20, 16, 12], 4, 40), [1.0], comparable=False)
    assert str(found) == "the fullest stage leaves 16.0 GiB of 40.0 GiB now, and how much more this takes is not known"
    assert (found.fits, found.left_bytes) == (None, None)
    assert str(room(Given(), [1.0])) == "more activations are held, and whether they fit is not known"  # type: ignore[arg-type]


def test_more_micro_batches_are_not_advised_where_they_do_not_fit() -> None:
    """An odd micro-batch cannot be halved, so the doubled batch of m=4 instead of 2 has to be held as it is."""
    bubble = Bubble(ideal=3 / 5, measured=0.61, low=0.61, high=0.61, source="timers", scope="run", basis="timer", where=[("train.log", 3)])
    for capacity, advice in ((34, []), (40, ["double the accumulation steps (2 → 4)"])):
        tables = with_memory([24, 24, 24, 20], 4, capacity)
        (found,) = high_bubble_ratio(bubble, Topology(pp=4), Config(micro_batches=2, micro_batch_size=3), tables)
        assert [a.action for a in found.advice] == advice
        (few,) = few_micro_batches(bubble, Topology(pp=4), Config(micro_batches=2, micro_batch_size=3), tables)
        assert few.advice[0].action.startswith("make room") == (capacity == 34)
        assert f"of {capacity}.0 GiB" in (few.advice[0].expected or "")
