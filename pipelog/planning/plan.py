"""The plan: a configuration, the shape of the job and, where there are, the costs of a run → checks, what would fit, and what else could be run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipelog._text import count, percent
from pipelog.errors import BadOption
from pipelog.findings import Finding, Severity
from pipelog.planning import checks, choices, schedules
from pipelog.planning.batch import Fit, Mesh, Sizes, batch, fits
from pipelog.planning.config_file import ConfigFile
from pipelog.planning.costs import MOST_STAGES, Costs, Links, Measured, given, of_layers
from pipelog.planning.options import Bench, Option


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user gives, null where nothing. stage_costs_ns: (forward, backward) of a micro-batch; layers: relative costs of all layers.

    train, micro, m: over the configuration's. limit: of the bubble, as in PL102.
    """

    config: ConfigFile | None = None
    measured: Measured | None = None
    stages: int | None = None
    gpus: int | None = None
    tp: int | None = None
    train: int | None = None
    micro: int | None = None
    m: int | None = None
    stage_costs_ns: tuple[tuple[float, float], ...] = ()
    transfer_ns: float | None = None
    layers: tuple[float, ...] = ()
    schedules: tuple[str, ...] = ()
    chunks: tuple[int, ...] = (2,)
    limit: float = 0.25


@dataclass(frozen=True, slots=True)
class Verdict:
    """word: FITS, SLOW, DOES NOT FIT, CANNOT TELL; tone as in the report's verdict."""

    word: str
    tone: str
    sentence: str
    facts: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that every output shows. rows: options by table. grid: m and p of the table of bubbles."""

    name: str
    bench: Bench
    wanted: Wanted
    findings: tuple[Finding, ...]
    fits: tuple[tuple[Fit, Option], ...]
    now: Option | None
    micro_batches: tuple[Option, ...]
    stages: tuple[Option, ...]
    schedules: tuple[Option, ...]
    grid: tuple[list[int], list[int]]
    missing: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """One sentence, with the reason."""
        return _verdict(self)


def plan(wanted: Wanted) -> Plan:
    """Work everything out. Raises BadOption where the given numbers contradict each other."""
    run = wanted.measured
    shape = run.shape if run else {}
    stages = wanted.stages or (wanted.config.stages if wanted.config else None) or (len(wanted.stage_costs_ns) or None) or shape.get("pp")
    mesh = Mesh(wanted.gpus or shape.get("world_size"), stages, wanted.tp or shape.get("tp") or 1)
    known = batch(_sizes(wanted, mesh), mesh.replicas)
    if wanted.config and wanted.config.elastic:
        known = replace(known, problem=None)
    ran = run.config.get("virtual_stages") if run else None
    name, chunks = (wanted.schedules or ("interleaved" if ran and ran > 1 else "1f1b",))[0], wanted.chunks[0]
    if ran and ran > 1 and not wanted.schedules:
        chunks = ran
    costs = _costs(wanted, stages)
    bench = Bench(
        mesh,
        known,
        name,
        chunks if schedules.SCHEDULES[name].chunks else 1,
        costs,
        run.memory if run else None,
        list(wanted.layers) or None,
        shape.get("dp"),
    )
    ways = fits(known, mesh)
    return Plan(
        wanted.config.name if wanted.config else run.name if run else "plan",
        bench,
        wanted,
        checks.findings(bench, ways, wanted.config, run, wanted.limit),
        tuple((f, bench.option(f.stages, f.m, micro=f.micro, replicas=f.replicas)) for f in ways),
        bench.option(stages, known.m) if stages and known.m else None,
        tuple(choices.micro_batches(bench, wanted.limit)),
        tuple(choices.stages(bench)),
        tuple(choices.other_schedules(bench, wanted.schedules or tuple(schedules.SCHEDULES), wanted.chunks)),
        choices.grid(bench),
        tuple(_missing(wanted, bench)),
    )


def _sizes(wanted: Wanted, mesh: Mesh) -> Sizes:
    """The configuration's sizes, or the run's, with what is given on the command line over them.

    Of a run whose number of replicas is changed, train batch and micro-batch stay, and m follows.
    """
    if wanted.config:
        stated = wanted.config.sizes
    elif wanted.measured:
        ran, shape = wanted.measured.config, wanted.measured.shape
        moved = mesh.replicas is not None and shape.get("dp") is not None and mesh.replicas != shape["dp"]
        stated = Sizes(ran.get("train_batch_size"), ran.get("micro_batch_size"), None if moved else ran.get("micro_batches"))
    else:
        stated = Sizes()
    over = [w if w is not None else s for w, s in ((wanted.train, stated.train), (wanted.micro, stated.micro), (wanted.m, stated.m))]
    return Sizes(*over)


def _costs(wanted: Wanted, stages: int | None) -> Costs | None:
    """Costs of the command line before those of the run; relative ones of layers where there is nothing else."""
    transfer = wanted.transfer_ns or 0.0
    if wanted.stage_costs_ns:
        if stages != len(wanted.stage_costs_ns) and not (wanted.layers or stages is None):
            raise BadOption(f"--costs gives {count(len(wanted.stage_costs_ns), 'stage')}, but there are {stages}")
        return given(list(wanted.stage_costs_ns), transfer, "given by --costs")
    if wanted.measured and wanted.measured.costs:
        costs = wanted.measured.costs
        return costs if wanted.transfer_ns is None else replace(costs, links=Links.alike(costs.stages, transfer))
    return of_layers(list(wanted.layers), stages) if wanted.layers and stages else None


def _missing(wanted: Wanted, bench: Bench) -> list[str]:
    """What would let the plan say more."""
    b, mesh = bench.batch, bench.mesh
    out = []
    if mesh.stages is None:
        out.append("the number of stages: --stages")
    if mesh.gpus is None and b.source.get("replicas") is None:
        out.append("the number of GPUs: --gpus")
    if b.m is None and mesh.problem is None:
        auto = wanted.config.sizes.auto if wanted.config else ()
        out.append(
            f'{" and ".join(auto)}, which {"is" if len(auto) == 1 else "are"} "auto": filled in by the trainer'
            if auto
            else "m: two of train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps"
        )
    if wanted.config and wanted.config.elastic:
        out.append("the batch sizes, which elasticity chooses when the job starts")
    if bench.costs is None:
        why = wanted.measured.why_no_costs if wanted.measured else None
        out.append(f"what a micro-batch costs on each stage: {why}" if why else "what a micro-batch costs on each stage: --from RUN, or --costs")
    elif (mesh.stages or 0) > MOST_STAGES:
        out.append(f"step times: pipelines of more than {MOST_STAGES} stages are not simulated")
    if wanted.measured and bench.memory is None and wanted.measured.why_no_memory:
        out.append(f"memory: {wanted.measured.why_no_memory}")
    return out


def _verdict(plan: Plan) -> Verdict:
    errors = [f for f in plan.findings if f.severity is Severity.ERROR]
    now, bench = plan.now, plan.bench
    idle = schedules.shown(now.schedule, now.stages, now.m, now.v) if now else ""
    of = (
        f"{count(now.m, 'micro-batch', 'micro-batches')} on {count(now.stages, 'stage')} {'leaves' if now.m == 1 else 'leave'} a bubble of {idle}"
        if now
        else ""
    )
    few = next((f for f in plan.findings if f.name == "few-micro-batches"), None)
    facts = _facts(bench)
    if errors:
        first = errors[0]
        sentence = f"The batch sizes do not multiply: {first.title}" if first.name == "batch-arithmetic" else first.title[0].upper() + first.title[1:]
        return Verdict("DOES NOT FIT", "error", sentence + (f"; and {of}" if few else ""), facts)
    if now is None:
        return Verdict("CANNOT TELL", "unknown", "Not known: " + "; ".join(plan.missing[:2]), facts)
    unequal = next((f for f in plan.findings if f.name == "stage-imbalance"), None)
    if few or unequal:
        more = f", and the stages are unequal: {percent(now.idle)} of the pipeline phase would be idle" if unequal and now.idle is not None else ""
        return Verdict("SLOW", "warning", of[0].upper() + of[1:] + more, facts)
    if bench.batch.replicas is None or bench.batch.train is None:
        return Verdict("CANNOT TELL", "unknown", f"{of[0].upper()}{of[1:]}; whether the batch sizes multiply is not known", facts)
    b = bench.batch
    return Verdict(
        "FITS",
        "ok",
        f"{b.train} = {b.micro} x {b.m} x {b.replicas}; {of}"
        if now.stages > 1
        else f"{b.train} = {b.micro} x {b.m} x {b.replicas}; one stage, no bubble",
        facts,
    )


def _facts(bench: Bench) -> str:
    """4 stages x 2 replicas x 1 tensor-parallel rank = 8 GPUs · 1F1B with a flush."""
    mesh, b = bench.mesh, bench.batch
    parts = []
    shape = [count(mesh.stages, "stage")] if mesh.stages else []
    if b.replicas:
        shape.append(count(b.replicas, "replica"))
    if mesh.tp > 1:
        shape.append(count(mesh.tp, "tensor-parallel rank"))
    gpus = mesh.gpus or (mesh.stages * b.replicas * mesh.tp if mesh.stages and b.replicas else None)
    if shape:
        full = mesh.stages and b.replicas and gpus
        parts.append(" x ".join(shape) + (f" = {count(gpus or 0, 'GPU')}" if full else f", {count(mesh.gpus, 'GPU')}" if mesh.gpus else ""))
    elif mesh.gpus:
        parts.append(count(mesh.gpus, "GPU"))
    if b.train:
        parts.append(f"train batch {b.train:,}")
    if b.micro:
        parts.append(f"micro-batch {b.micro:,}")
    if b.m:
        parts.append(f"m = {b.m:,}")
    chosen = schedules.SCHEDULES[bench.schedule]
    parts.append(chosen.title if bench.schedule == "1f1b" else f"{chosen.title} ({chosen.runs_in})")
    return " · ".join(parts)
