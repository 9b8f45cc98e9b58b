"""The comparison as titles, sentences and tables: the same in the terminal, in Markdown and in HTML. Words only, no arithmetic of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipelog._text import digits, percent, size
from pipelog.comparing import places
from pipelog.comparing.comparison import Comparison
from pipelog.comparing.findings import ORDER, Changed
from pipelog.comparing.side import Side
from pipelog.comparing.words import relative, share, signed, time
from pipelog.planning.document import Section

TABLE = "Side by side"
"""The title by which pipelog knows its own text among the files of a job."""
PARTS = "Where the time of a step went"
"""The title that a picture belongs under."""
_MOST = 40
"""Rows of a table; all are in the JSON."""
_NOT_KNOWN = "not known"


def sections(made: Comparison) -> list[Section]:
    """What comes after the verdict, in order; what has nothing to say is left out."""
    every = [
        Section("Before you read on", made.notes),
        _why(made),
        _table(made),
        _parts(made),
        _findings(made),
        _settings(made),
        _stages(made),
        _ranks(made),
        _links(made),
    ]
    return [s for s in every if s.says or s.rows]


def _why(made: Comparison) -> Section:
    """All reasons, but for the one that the verdict gives."""
    named = made.verdict.word == "BIGGER BATCH"  # whose sentence tells what the number of micro-batches makes
    said = [_sentence(r.says) for r in made.reasons if r.says not in made.verdict.sentence and not (named and "micro-batches instead" in r.says)]
    confidence = [f"Confidence: {made.time.confidence}."] if made.time and (made.time.faster or made.time.slower) else []
    return Section("Why", tuple(said + confidence))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


Figure = tuple[str, Callable[[Side], float | None], Callable[[float], str]]


def _table(made: Comparison) -> Section:
    """Throughput, bubble and effective compute time always together: one alone misleads."""
    figures: list[Figure] = [
        ("step, median", lambda s: s.step_s, time),
        ("scatter of the steps", lambda s: s.scatter_s, time),
        ("samples/s", lambda s: s.samples_per_s, digits),
        ("time per sample", lambda s: s.sample_s, time),
        ("GPU time per sample", lambda s: s.gpu_sample_s, time),
        ("compute of a step, mean of the stages", places.compute_s, time),
        ("compute of a micro-batch, slowest stage", places.slowest_s, time),
    ]
    alike = made.a.basis == made.b.basis and made.a.busy_s.keys() == made.b.busy_s.keys()
    rows: list[tuple[str, ...]] = []
    for name, of, show in figures:
        a, b = of(made.a), of(made.b)
        if a is not None or b is not None:
            measured = name.startswith("compute")
            change = "" if name.startswith("scatter") or (measured and not alike) else relative(a, b)
            cells = (show(v) + (_alone(s) if measured else "") if v is not None else "" for v, s in ((a, made.a), (b, made.b)))
            rows.append((name, *cells, change))
    for name, (a, b) in (
        ("bubble, measured", (made.a.bubble, made.b.bubble)),
        ("bubble of the schedule alone", (made.a.ideal, made.b.ideal)),
    ):
        if a is not None or b is not None:
            measured = name.endswith("measured")
            change = f"{(b - a) * 100:+.1f} points" if a is not None and b is not None and (alike or not measured) else ""
            cells = (share(v) + (_alone(s) if measured and v is not None else "") for v, s in ((a, made.a), (b, made.b)))
            rows.append((name, *cells, change))
    most = [max(s.peak_bytes.values(), default=None) for s in (made.a, made.b)]
    if any(most):
        before, after = (size(v) if v else "" for v in most)
        rows.append(("memory, largest peak", before, after, relative(*most)))
    return Section(TABLE, (), ("", "A", "B", "change"), tuple(rows), (1, 2, 3))


def _alone(one: Side) -> str:
    """A figure of one stage of several says so."""
    return f" (stage {min(one.busy_s)})" if len(one.busy_s) == 1 and (one.pp or 2) > 1 else ""


def _parts(made: Comparison) -> Section:
    rows = made.parts
    if made.why_not or not rows:
        return Section("")
    per = "a sample" if made.time and made.time.per_sample else "a step"
    cells = tuple((p.name, time(p.a_s), time(p.b_s), signed(p.more_s)) for p in rows)
    says = f"Means over the stages of the recorded steps, brought to the median step; together they are {per}."
    return Section(PARTS, (says,), ("part", "A", "B", "change"), cells, (1, 2, 3))


def _findings(made: Comparison) -> Section:
    told = [c for c in made.findings if c.what != "same"]
    rows = tuple((c.what, c.shown.severity.value, c.shown.id, _cost(c), c.shown.title) for c in told[:_MOST])
    same = sum(c.what == "same" for c in made.findings)
    says = []
    if not told:
        says.append(f"The same findings in both ({same})." if same else "No findings in either.")
    elif same:
        says.append(f"Besides these, {same} {'is' if same == 1 else 'are'} the same in both.")
    if any(c.what in ORDER[4:6] for c in told):
        says.append("`only … could tell`: the other run has no data for the rule, so nothing says that it was new or gone.")
    if len(told) > _MOST:
        says.append(f"The first {_MOST} of {len(told)}; all are in the JSON.")
    return Section("Findings", tuple(says), ("", "severity", "rule", "cost", "says") if rows else (), rows)


def _cost(changed: Changed) -> str:
    """Share of the time, before and after."""
    costs = [f"{percent(f.cost)}" if f and f.cost else "" for f in (changed.a, changed.b)]
    return " → ".join(costs) if all(costs) and costs[0] != costs[1] else costs[1] or costs[0]


def _settings(made: Comparison) -> Section:
    rows = tuple((s.name, s.a if s.a is not None else _NOT_KNOWN, s.b if s.b is not None else _NOT_KNOWN) for s in made.settings)
    says = () if rows else ("Nothing that the files tell differs: configuration, shape, versions and hosts.",)
    return Section("Configuration, shape and versions", says, ("", "A", "B") if rows else (), rows[:_MOST])


def _rows(section: str, head: tuple[str, ...], rows: Iterator[tuple[str, ...]], says: str = "") -> Section:
    """A table without its empty columns."""
    cells = list(rows)
    kept = [i for i in range(len(head)) if any(row[i] for row in cells)]
    more = (f"The first {_MOST} of {len(cells)}; all are in the JSON.",) if len(cells) > _MOST else ()
    return Section(
        section if cells else "",
        ((says,) if says and cells else ()) + more,
        tuple(head[i] for i in kept) if cells else (),
        tuple(tuple(row[i] for i in kept) for row in cells[:_MOST]),
        tuple(range(len(kept))),
    )


def _stages(made: Comparison) -> Section:
    found = made.stages
    if not found and made.a.pp and made.b.pp and made.a.pp != made.b.pp:
        return Section("Stage by stage", (f"{made.a.pp} stages in A and {made.b.pp} in B: they hold other layers and are not compared one by one.",))
    head = ("stage", "compute A", "compute B", "change", "idle A", "idle B", "peak A", "peak B", "change of peak")
    rows = (
        (
            str(s.stage),
            time(s.a.compute_s),
            time(s.b.compute_s),
            relative(s.a.compute_s, s.b.compute_s),
            share(s.a.idle),
            share(s.b.idle),
            size(s.a.peak_bytes) if s.a.peak_bytes else "",
            size(s.b.peak_bytes) if s.b.peak_bytes else "",
            relative(s.a.peak_bytes, s.b.peak_bytes),
        )
        for s in found
    )
    sizes = f" of {made.a.micro} samples in A and {made.b.micro} in B" if made.a.micro != made.b.micro else ""
    return _rows("Stage by stage", head, rows, f"`compute` of one micro-batch{sizes}, where both were measured in the same way.")


def _ranks(made: Comparison) -> Section:
    head = ("rank", "stage", "replica", "compute A", "compute B", "change")
    rows = ((str(r.rank), str(r.stage), str(r.replica), time(r.a_s), time(r.b_s), relative(r.a_s, r.b_s)) for r in made.ranks)
    return _rows("Rank by rank", head, rows, "`compute` of one micro-batch; the ranks that changed most first.")


def _links(made: Comparison) -> Section:
    head = ("link", "transfer A", "transfer B", "sender idle before A", "sender idle before B")
    rows = ((f"{x.source} → {x.target}", time(x.a_transfer_s), time(x.b_transfer_s), time(x.a_late_s), time(x.b_late_s)) for x in made.links)
    return _rows("Link by link", head, rows, "Between stages; medians of a message.")
