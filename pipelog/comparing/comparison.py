"""Two reports → what changed: the verdict first, with the part of the step that explains it, or why it cannot be told."""

from __future__ import annotations

from dataclasses import dataclass

from pipelog._text import digits, percent
from pipelog.comparing import because, places
from pipelog.comparing.findings import Changed, changed
from pipelog.comparing.settings import Setting, other_model, renamed, same_model_known, settings
from pipelog.comparing.side import Side, side
from pipelog.comparing.time import Change, change, from_batch, from_gpus
from pipelog.comparing.words import per_sample, step
from pipelog.errors import BadReport
from pipelog.report import Report


@dataclass(frozen=True, slots=True)
class Verdict:
    """word: FASTER, SLOWER, NO DIFFERENCE, BIGGER BATCH, MORE GPUS, CANNOT TELL; tone as in the report's verdict."""

    word: str
    tone: str
    sentence: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that every output shows. time: null where the two cannot be compared, why_not says why."""

    a: Side
    b: Side
    time: Change | None
    why_not: str | None
    reasons: tuple[because.Reason, ...]
    verdict: Verdict
    settings: tuple[Setting, ...]
    findings: tuple[Changed, ...]
    parts: tuple[because.Part, ...]
    stages: tuple[places.Stage, ...]
    ranks: tuple[places.Rank, ...]
    links: tuple[places.Link, ...]
    notes: tuple[str, ...]


_USUAL = 0.05
"""A smaller difference may be one of the two runs, not of what was changed: the recorded healthy runs of one job differ by 4 %."""


def compare(a: Report, b: Report) -> Comparison:
    """Compare B with A. Raises BadReport where one of them is damaged."""
    try:
        return _compare(side("A", a), side("B", b))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise BadReport(f"not a whole report: {error!r}") from error


def _compare(a: Side, b: Side) -> Comparison:
    found = changed(a.report, b.report)
    why_not = other_model(a, b) or _not_comparable(a, b)
    time = None if why_not else change(a, b)
    reasons = because.reasons(a, b, time, found) if time else ()
    verdict = _verdict(a, b, time, reasons) if time else _cannot(a, b, why_not or "")
    return Comparison(
        a,
        b,
        time,
        why_not,
        reasons,
        verdict,
        settings(a.report, b.report),
        found,
        because.parts(a, b) if time else (),
        places.stages(a, b),
        places.ranks(a, b),
        places.links(a, b),
        tuple(_notes(a, b, time)),
    )


def _not_comparable(a: Side, b: Side) -> str | None:
    for one in (a, b):
        if one.step_s is None:
            return f"{one.label} has no step times{_how_ended(one)}"
    for one in (a, b):
        if one.warm_up_alone:
            return f"the only step time of {one.label} is that of its first interval, which holds warm-up"
    for one in (a, b):
        if one.batch is None:
            return f"the train batch of {one.label} is not known, and so not whether a step is the same work"
    if not same_model_known(a, b) and _unlike(a, b):
        return "they have different shapes, and no layers or parameters tell whether they train the same model"
    return None


def _unlike(a: Side, b: Side) -> bool:
    shapes = [(s.pp, s.dp, s.tp, s.batch, s.report.run["frameworks"].get("megatron")) for s in (a, b)]
    return shapes[0] != shapes[1]


def _how_ended(one: Side) -> str:
    failure = one.report.failure
    return f": {failure['title']}" if failure else ""


def _cannot(a: Side, b: Side, why: str) -> Verdict:
    return Verdict("CANNOT TELL", "unknown", f"Whether B is faster cannot be told: {why}", _facts(a, b))


def _verdict(a: Side, b: Side, time: Change, reasons: tuple[because.Reason, ...]) -> Verdict:
    facts = _facts(a, b)
    what = "a sample" if time.per_sample else "a step"
    off = percent(abs(time.ratio - 1))
    both = f"{per_sample(b)} instead of {per_sample(a)} a sample" if time.per_sample else f"{step(b)} instead of {step(a)} a step"
    if not (time.faster or time.slower):
        both = both.replace(" instead of ", " against ")
        shown = f"{off} {'less' if time.ratio < 1 else 'more'}, and below {percent(time.noise)} it may be their scatter"
        return Verdict("NO DIFFERENCE", "ok", f"No difference that the steps show: {both} ({shown})", facts)
    if time.slower:
        return Verdict("SLOWER", "error", f"B is slower: {what} takes {off} longer ({both}){_why(reasons, 'more')}", facts)
    if from_gpus(time, a, b):
        assert time.gpus is not None
        word = "as much" if abs(time.gpus - 1) <= max(time.noise, 0.02) else f"{percent(time.gpus - 1)} more"
        return Verdict(
            "MORE GPUS",
            "warning",
            f"The gain came from more GPUs ({a.gpus} → {b.gpus}): {what} takes {off} less, but each GPU works {word} for it",
            facts,
        )
    batch = from_batch(time, a, b)
    if batch:
        return Verdict("BIGGER BATCH", "warning", _bigger(a, b, time, batch, off), facts)
    share = ""
    if time.per_sample and time.schedule is not None and time.schedule < 1 and "micro-batches instead" not in (reasons[0].says if reasons else ""):
        share = f"; the bigger number of micro-batches alone makes {percent(1 - time.schedule)}"
    return Verdict("FASTER", "ok", f"B is faster: {what} takes {off} less ({both}){_why(reasons, 'less')}{share}", facts)


def _bigger(a: Side, b: Side, time: Change, how: str, off: str) -> str:
    grown = f"The gain came from a bigger batch ({a.batch} → {b.batch}): a sample takes {off} less ({per_sample(b)} instead of {per_sample(a)})"
    if how == "micro-batches":
        assert time.rest is not None
        assert time.schedule is not None
        off_rest = abs(time.rest - 1)
        same = "as long as before" if off_rest <= max(time.noise, 0.02) else f"{percent(off_rest)} {'longer' if time.rest > 1 else 'less'}"
        why = f"since {b.m} micro-batches instead of {a.m} fill the pipeline better, which alone makes {percent(1 - time.schedule)}; a micro-batch itself takes {same}"
    elif how == "unknown":
        why = "and whether B would be faster with the batch of A cannot be told"
        grown = grown.replace("The gain came from", "The gain came with", 1)
    else:
        grown = grown.replace("The gain came from", "The gain came with", 1)
        why = f"with micro-batches of {b.micro} samples instead of {a.micro}, which cannot be told from faster work"
    return f"{grown}, {why}; a bigger batch changes convergence"


def _why(reasons: tuple[because.Reason, ...], word: str) -> str:
    """`; most of it is …`, or that nothing tells."""
    mine = [r for r in reasons if r.explains]
    if not mine:
        return f"; what took {word} cannot be told{f': {reasons[0].says}' if reasons else ''}"
    return f"; {mine[0].says}"


def _facts(a: Side, b: Side) -> tuple[str, ...]:
    return tuple(f"{one.name}: {_shape(one)}" for one in (a, b))


def _shape(one: Side) -> str:
    parts = [f"{n} {v}" for n, v in (("pp", one.pp), ("dp", one.dp), ("tp", one.tp)) if v]
    out = " x ".join(parts) or "shape not known"
    if one.m:
        out += f", m {one.m}"
    if one.batch:
        out += f", batch {one.batch}"
    status = one.report.run["status"]
    return f"{out}, {status}"


def _notes(a: Side, b: Side, time: Change | None) -> list[str]:
    """What a reader should know before the figures."""
    out = [f"{one.label} did not come to its end ({one.report.run['status']}): {one.report.failure['title']}" for one in (a, b) if one.report.failure]
    if time is not None and not same_model_known(a, b):
        out.append("Neither layers nor parameters of both are known: the two are taken to train the same model.")
    if time is not None and time.per_sample:
        out.append(f"A step is not the same work in both (train batch {a.batch} and {b.batch}), so samples are compared, not steps.")
    if time is not None and a.source != b.source:
        out.append(f"The step times come from other lines in A ({a.source}) than in B ({b.source}), which need not measure the same.")
    unknown = [s.label for s in (a, b) if s.scatter_s is None and s.step_s is not None]
    if time is not None and unknown:
        out.append(
            f"How much the steps of {' and '.join(unknown)} scatter is not known (one timed interval): only a difference above {percent(time.noise)} is called one."
        )
    if time is not None and time.noise < abs(time.ratio - 1) < _USUAL:
        out.append(
            f"It is one run of each: runs of one job may differ by some per cent among themselves, and {percent(abs(time.ratio - 1))} is little."
        )
    if time is not None and time.gpus is not None:
        out.append(
            f"The number of GPUs differs ({a.gpus} and {b.gpus}): for a sample a GPU of B works {digits(time.gpus)} times as long as one of A."
        )
    if renamed(a.report) or renamed(b.report):
        out.append("Names were redacted in each report by itself: node-1 of A need not be node-1 of B, and whether the hosts differ cannot be told.")
    if a.report.pipelog_version != b.report.pipelog_version:
        out.append("The two reports were made by different versions of pipelog, whose rules and figures may differ.")
    return out
