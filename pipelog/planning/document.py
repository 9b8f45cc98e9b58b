"""The plan as titles, sentences and tables: the same in the terminal, in Markdown and in HTML. Words only, no arithmetic of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from pipelog._text import digits, percent, seconds, size
from pipelog.planning import schedules
from pipelog.planning.batch import KEYS
from pipelog.planning.costs import Memory
from pipelog.planning.options import Option
from pipelog.planning.pitfalls import pitfalls
from pipelog.planning.plan import Plan
from pipelog.tables.capacity import FULL


@dataclass(frozen=True, slots=True)
class Section:
    """A title, sentences, and a table. numbers: columns that are set right. now: rows that are the job as configured."""

    title: str
    says: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[int, ...] = ()
    now: tuple[int, ...] = ()


SEEN = "What each pipeline sees"


def sections(plan: Plan) -> list[Section]:
    """What comes after the verdict and before the end, in order; what has nothing to say is left out. Findings stand after the first."""
    made = [
        _seen(plan),
        _fits(plan),
        _micro_batches(plan),
        _stages(plan),
        _schedules(plan),
        _fit_when(plan),
        _by_stage(plan),
        _replayed(plan),
        _grid(plan),
        _mind(plan),
        _missing(plan),
    ]
    return [s for s in made if s.says or s.rows]


def _seen(plan: Plan) -> Section:
    """The course's trap: m is of one replica."""
    b, mesh, bench = plan.bench.batch, plan.bench.mesh, plan.bench
    if b.m is None or mesh.stages is None:
        return Section("")
    how = {
        "derived": f", derived from train batch {b.train} / (micro-batch {b.micro} x {b.replicas} replicas)",
        "default": ", DeepSpeed's default where neither it nor two other sizes are given",
    }.get(b.source.get("m", "given"), "")
    says = [f"In DeepSpeed each pipeline replica sees m = gradient_accumulation_steps micro-batches in a step. Here m = {b.m}{how}."]
    idle = schedules.shown(bench.schedule, mesh.stages, b.m, bench.v)
    if mesh.stages > 1:
        top = "(p - 1) / (v m + p - 1)" if bench.v > 1 else "(p - 1) / (m + p - 1)"
        says.append(f"With p = {mesh.stages} stages the schedule alone leaves a bubble of {top} = {idle}; unequal stages and transfers come on top.")
    every = b.global_count
    if every and mesh.stages > 1:
        wrong = schedules.shown(bench.schedule, mesh.stages, every, bench.v)
        says.append(
            f"{b.train} / {b.micro} = {every} counts the micro-batches of all replicas together. Read as m it would promise a bubble of {wrong}; no pipeline of this job has that."
        )
    if b.train and b.micro and b.replicas and b.problem and b.train % (b.micro * b.m) == 0:
        need = b.train // (b.micro * b.m)
        few = "only " if need > b.replicas else ""
        says.append(
            f"{b.train} = {b.micro} x {b.m} x {need} asks for {need} replicas, {need * mesh.stages * mesh.tp} GPUs with {mesh.stages} stages; "
            f"{mesh.gpus} GPUs make {few}{b.replicas}, and {b.micro} x {b.m} x {b.replicas} = {b.micro * b.m * b.replicas}: DeepSpeed would stop with an assertion."
        )
    return Section(SEEN, tuple(says))


def _fits(plan: Plan) -> Section:
    rows = [(_brief(f.change), f"{f.train} = {f.micro} x {f.m} x {f.replicas}", str(f.stages), str(f.gpus), _idle(o), f.price) for f, o in plan.fits]
    return Section(
        "What would fit",
        ("One number changed at a time; train batch = micro-batch x m x replicas.",) if rows else (),
        ("change", "train batch", "stages", "GPUs", "bubble", "what else changes"),
        tuple(rows),
        (2, 3),
    )


def _brief(change: str) -> str:
    for key, word in zip(KEYS, ("train batch", "micro-batch", "accumulation"), strict=True):
        change = change.replace(key, word)
    return change


Column = tuple[str, Callable[[Option], str]]


_WORDS = frozenset({"schedule", "note", "what else changes"})
"""Columns of text; all others are numbers."""


def _table(title: str, says: tuple[str, ...], options: tuple[Option, ...], columns: list[Column]) -> Section:
    """A row an option; columns without any value are left out."""
    cells = [[show(o) for _, show in columns] for o in options]
    kept = [i for i in range(len(columns)) if any(row[i] for row in cells)]
    return Section(
        title,
        says if options else (),
        tuple(columns[i][0] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in cells),
        tuple(n for n, i in enumerate(kept) if columns[i][0] not in _WORDS),
        tuple(n for n, o in enumerate(options) if o.now),
    )


def _micro_batches(plan: Plan) -> Section:
    relative = plan.bench.costs is None or plan.bench.costs.relative
    says = ["Bubble and time over the work without bubble (`time`), with equal stages and free transfers."]
    if any(o.train for o in plan.micro_batches):
        says = [
            "The same samples cut into other micro-batches, then larger batches.",
            "`held`: activations on stage 0 over those of the job as configured.",
        ]
        if relative:
            says[1] = f"`time`: over the same samples without any bubble, with equal stages and free transfers. {says[1]}"
    if plan.bench.costs and not plan.bench.costs.relative:
        says.append(_predicted(plan))
    columns: list[Column] = [
        ("m", lambda o: f"{o.m:,}"),
        ("micro", lambda o: f"{o.micro:,}" if o.micro else ""),
        ("train", lambda o: f"{o.train:,}" if o.train else ""),
        ("bubble", _idle),
        ("time", lambda o: "" if o.phase_ns and not relative else _over(o)),
        ("held", _held_ratio),
        *_costly(plan, plan.micro_batches),
        ("what else changes", lambda o: o.why_not or o.price),
    ]
    return _table("Micro-batches", tuple(says), plan.micro_batches, columns)


def _stages(plan: Plan) -> Section:
    mesh = plan.bench.mesh
    where = (
        f"The same global batch on the same {mesh.gpus} GPUs: fewer stages leave more replicas, and so fewer micro-batches for each."
        if mesh.gpus
        else ""
    )
    says = [
        where or "The same m on other depths.",
        "As long as m is at least p, a deeper pipeline holds no less on stage 0: fewer layers, but more micro-batches in flight.",
    ]
    if any(o.phase_ns for o in plan.stages) and not (plan.bench.costs and plan.bench.costs.relative):
        says.append(
            "`phase` is the pipeline's part of the step; how long other replicas reduce gradients is not predicted. The layers of a stage are taken as equal."
        )
    relative = plan.bench.costs is None or plan.bench.costs.relative
    columns: list[Column] = [
        ("stages", lambda o: str(o.stages)),
        ("replicas", lambda o: str(o.replicas) if o.replicas and mesh.gpus else ""),
        ("m", lambda o: f"{o.m:,}"),
        ("bubble", lambda o: "" if o.why_not else _idle(o)),
        ("time", lambda o: "" if o.why_not or (o.phase_ns and not relative) else _over(o)),
        ("held", lambda o: "" if o.why_not else _held_ratio(o)),
        *_costly(plan, plan.stages, whole=False),
        ("what else changes", lambda o: o.why_not or o.price),
    ]
    return _table("Stages", tuple(says), plan.stages, columns)


def _schedules(plan: Plan) -> Section:
    b, mesh = plan.bench.batch, plan.bench.mesh
    says = f"{mesh.stages} stages, m = {b.m}. DeepSpeed itself runs only 1F1B with a flush (= PipeDream-Flush); the others are what another engine would make of it."
    columns: list[Column] = [
        ("schedule", lambda o: schedules.SCHEDULES[o.schedule].brief + (f", v = {o.v}" if o.v > 1 else "")),
        ("bubble", lambda o: "" if o.why_not else _idle(o)),
        ("in flight", lambda o: "" if o.why_not else _spread_of(o.held)),
        ("messages", lambda o: "" if o.why_not else f"{o.messages:,}"),
        *_costly(plan, plan.schedules),
        ("note", lambda o: o.why_not or ""),
    ]
    return _table("Schedules", (says, "`in flight`: micro-batches that the first and the last stage hold."), plan.schedules, columns)


def _fit_when(plan: Plan) -> Section:
    names = dict.fromkeys(o.schedule for o in plan.schedules)
    return Section("Which schedule fits when", tuple(f"{schedules.SCHEDULES[n].title}: {schedules.SCHEDULES[n].fits_when}." for n in names))


_MOST_STAGES = 64


def _by_stage(plan: Plan) -> Section:
    now, costs, memory = plan.now, plan.bench.costs, plan.bench.memory
    if now is None or now.stages < 2 or not (costs or memory) or not now.held:
        return Section("")
    used = costs if costs and costs.stages == now.stages else None
    says = [f"As configured, m = {now.m}; compute is {used.basis}." if used else f"As configured, m = {now.m}."]
    if now.idle is not None:
        says.append(
            f"With these stages {percent(now.idle)} of the pipeline phase is idle; equal stages and free transfers would leave {percent(float(now.bubble))}."
        )
    head = ["stage", "layers", "compute of a micro-batch", "idle", "in flight", "peak"]
    if now.stages > _MOST_STAGES:
        says.append(f"The first {_MOST_STAGES} of {now.stages} stages; all of them are in the JSON.")
    rows = [
        [
            str(s),
            str(used.layers[s]) if used and used.layers else "",
            _cost(used.total_ns(s), relative=used.relative) if used else "",
            percent(now.idle_by_stage[s]) if now.idle_by_stage else "",
            _short(now.held[s]),
            size(now.peak_bytes[s]) if now.peak_bytes else "",
        ]
        for s in range(min(now.stages, _MOST_STAGES))
    ]
    kept = [i for i in range(len(head)) if any(r[i] for r in rows)]
    return Section(
        "Stage by stage", tuple(says), tuple(head[i] for i in kept), tuple(tuple(r[i] for i in kept) for r in rows), tuple(range(len(kept)))
    )


def _cost(value: float, *, relative: bool) -> str:
    return digits(value) if relative else seconds(value)


_MOST_CHANGES = 5


def _replayed(plan: Plan) -> Section:
    """What the report of the run advises, which replayed all of its durations."""
    run = plan.wanted.measured
    told = [str(w["text"]) for w in run.what_if if w.get("advised") and w.get("text")][:_MOST_CHANGES] if run else []
    return Section(f"What the replay of {run.name} advises" if run and told else "", tuple(told))


def _grid(plan: Plan) -> Section:
    ms, ps = plan.grid
    name, v = plan.bench.schedule, plan.bench.v
    rows = [(f"{m:,}", *(percent(float(schedules.bubble(name, p, m, v))) for p in ps)) for m in ms]
    now = tuple(n for n, m in enumerate(ms) if m == plan.bench.batch.m)
    return Section("Bubble over m and stages", (), ("m", *(f"{p} stages" for p in ps)), tuple(rows), tuple(range(len(ps) + 1)), now)


def _mind(plan: Plan) -> Section:
    return Section("What to keep in mind", tuple(pitfalls(plan)))


def _missing(plan: Plan) -> Section:
    return Section("Not known", tuple(t[0].upper() + t[1:] for t in plan.missing))


def _costly(plan: Plan, options: tuple[Option, ...], *, whole: bool = True) -> Iterator[Column]:
    """What is predicted where costs or memory are known: the step, or only the phase where the rest of some steps is not known."""
    costs = plan.bench.costs
    if costs and not costs.relative:
        if whole and any(o.step_ns for o in options):
            yield "step", lambda o: seconds(o.step_ns) if o.step_ns else ""
            if len({o.train for o in options}) > 1:  # of one batch the step says it all
                yield "samples/s", lambda o: digits(o.samples_per_s) if o.samples_per_s else ""
        else:
            yield "phase", lambda o: seconds(o.phase_ns) if o.phase_ns else ""
    if costs:
        yield "idle", lambda o: percent(o.idle) if o.idle is not None else ""
    if whole:
        yield "peak", lambda o: _peak(o, plan.bench.memory)


def _peak(option: Option, memory: Memory | None) -> str:
    """The peak of the fullest stage, and whether that is more of its device than can be counted on."""
    if not option.peak_bytes:
        return ""
    most, capacity = max(option.peak_bytes), memory.capacity_bytes if memory else None
    return f"{size(most)}, does not fit in {size(capacity)}" if capacity and most > FULL * capacity else size(most)


def _predicted(plan: Plan) -> str:
    """What the predictions rest on."""
    costs, run = plan.bench.costs, plan.wanted.measured
    assert costs
    own = (
        f" (they miss the run's own phase by {percent(abs(run.error))}, for which they are corrected)"
        if run and run.error is not None and run.costs is costs
        else ""
    )
    if any(o.step_ns for o in plan.micro_batches):
        made = f"`step` and `idle` are simulated with the costs {costs.basis}{own}; what a step took outside the pipeline phase stays."
    else:
        made = f"`phase`, the pipeline's part of the step, and `idle` are simulated with the costs {costs.basis}{own}."
    return f"{made} A micro-batch of half the samples is taken to need half the time; on a GPU small ones need more than that."


def _idle(o: Option) -> str:
    return schedules.shown(o.schedule, o.stages, o.m, o.v)


def _over(o: Option) -> str:
    return f"x {float(schedules.over_ideal(o.bubble)):.2f}"


def _held_ratio(o: Option) -> str:
    return f"x {o.activations:.3g}" if o.activations is not None else ""


def _spread_of(held: tuple[Fraction, ...]) -> str:
    if not held:
        return ""
    return _short(held[0]) if held[0] == held[-1] else f"{_short(held[0])} … {_short(held[-1])}"


def _short(value: Fraction) -> str:
    return f"{float(value):.3g}" if value < 1000 else f"{int(value):,}"
