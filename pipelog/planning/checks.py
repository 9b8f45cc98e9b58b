"""What is wrong with the numbers before the job starts: rules PL103 and PL102 on the configuration, and what the engine refuses besides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipelog._text import percent, seconds
from pipelog.detectors.pl102_few_micro_batches import few_micro_batches
from pipelog.detectors.pl201_stage_imbalance import stage_imbalance  # noqa: F401  (registers the rule)
from pipelog.findings import DETECTORS, Advice, Confidence, Evidence, Finding, Severity, Where
from pipelog.planning import schedules
from pipelog.planning.batch import KEYS, Batch, Fit
from pipelog.planning.config_file import ConfigFile
from pipelog.planning.costs import MOST_STAGES, Costs, Measured, phase, split
from pipelog.planning.options import Bench
from pipelog.tables.bubble import Bubble
from pipelog.tables.config import Config
from pipelog.tables.topology import Said, Topology


def findings(bench: Bench, fits: tuple[Fit, ...], config: ConfigFile | None, run: Measured | None, limit: float) -> tuple[Finding, ...]:
    """All of them, errors first."""
    found = [
        *_arithmetic(bench.batch, fits, config),
        *_mesh(bench),
        *_schedule(bench),
        *_engine(bench, config),
        *_few(bench, config, limit),
        *_unequal(bench, run),
    ]
    return tuple(sorted(found, key=lambda f: f.severity is not Severity.ERROR))


def _arithmetic(b: Batch, fits: tuple[Fit, ...], config: ConfigFile | None) -> Iterator[Finding]:
    """PL103 in its own words; here it is known that DeepSpeed will use these values, so it is an error."""
    if b.problem is None:
        return
    known = [f"{f.change}: {f.train} = {f.micro} x {f.m} x {f.replicas}" for f in fits[:2]]
    least = "leave one of train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps out; DeepSpeed derives it"
    yield Finding(
        "PL103",
        "batch-arithmetic",
        b.problem,
        Severity.ERROR,
        Confidence.HIGH,
        evidence=_cited(config, *KEYS),
        advice=(Advice(f"change one number: {'; or '.join(known)}"),) if known else (Advice(least),),
    )


def _mesh(bench: Bench) -> Iterator[Finding]:
    mesh = bench.mesh
    if mesh.problem is None or not (mesh.gpus and mesh.stages):
        return
    unit = mesh.stages * mesh.tp
    near = [n for n in (mesh.gpus // unit * unit, (mesh.gpus // unit + 1) * unit) if n]
    yield Finding(
        "",
        "mesh",
        mesh.problem,
        Severity.ERROR,
        Confidence.HIGH,
        advice=(Advice(f"take {' or '.join(map(str, near))} GPUs, or a number of stages that divides {mesh.gpus // mesh.tp or 1}"),),
    )


def _schedule(bench: Bench) -> Iterator[Finding]:
    """A schedule or a depth that cannot run with these numbers."""
    p, m = bench.mesh.stages, bench.batch.m
    why = bench.option(p, m).why_not if p and m else None
    if why is None:
        return
    advice = "take fewer stages" if "layers" in why else f"take {-(-(m or 1) // (p or 1)) * (p or 1)} micro-batches, or the schedule 1f1b"
    yield Finding("", "schedule", why, Severity.ERROR, Confidence.HIGH, advice=(Advice(advice),))


def _engine(bench: Bench, config: ConfigFile | None) -> Iterator[Finding]:
    """What DeepSpeed's pipeline engine or its configuration refuses whatever the sizes are."""
    if config is None:
        return
    if (config.zero_stage or 0) >= 2 and (bench.mesh.stages or 0) > 1:
        yield Finding(
            "",
            "zero-stage",
            f"ZeRO stage {config.zero_stage} with a pipeline: DeepSpeed's pipeline engine refuses ZeRO 2 and 3",
            Severity.ERROR,
            Confidence.HIGH,
            evidence=_cited(config, "zero_optimization.stage"),
            advice=(Advice("set zero_optimization.stage to 1, or to 0"),),
        )
    sizes = config.sizes
    if sizes.train is None and sizes.micro is None and not config.elastic and (bench.batch.train is None and bench.batch.micro is None):
        yield Finding(
            "",
            "no-batch-size",
            "neither train_batch_size nor train_micro_batch_size_per_gpu is given: DeepSpeed needs one of them",
            Severity.ERROR,
            Confidence.HIGH,
            advice=(Advice("set train_batch_size and train_micro_batch_size_per_gpu; DeepSpeed derives gradient_accumulation_steps"),),
        )


def _few(bench: Bench, config: ConfigFile | None, limit: float) -> Iterator[Finding]:
    """PL102, the rule itself, on what is known; with the divisor of the global batch that is enough where there is one."""
    p, m, b = bench.mesh.stages, bench.batch.m, bench.batch
    if p is None or p < 2 or m is None:
        return
    line = config.lines.get(KEYS[2]) if config else None
    said = {"micro_batches": Said(m, config.name if config else None, line, "")} if line else {}
    ideal = Bubble(ideal=float(schedules.bubble(bench.schedule, p, m, bench.v)))
    told = Config(micro_batches=m, micro_batch_size=b.micro, virtual_stages=bench.v, said=said)
    for found in few_micro_batches(ideal, Topology(pp=p), told, limit=limit):
        each, enough = b.per_replica, schedules.enough(p, limit, bench.v)
        fit = next((k for k in range(enough, min(each, 1 << 20) + 1) if each % k == 0), None) if each else None
        if fit is None or not (b.train and b.replicas and each):
            yield found
            continue
        idle = schedules.shown(bench.schedule, p, fit, bench.v)
        exact = Advice(
            f"at train batch {b.train}: gradient_accumulation_steps {fit} with micro-batch {each // fit} ({b.train} = {each // fit} x {fit} x {b.replicas})",
            f"ideal bubble {percent(ideal.ideal or 0)} → {idle}; convergence stays, smaller kernels may be slower",
        )
        yield replace(found, advice=(*found.advice, exact))


def _cited(config: ConfigFile | None, *keys: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(config.name, config.lines[k]) for k in keys if k in config.lines) if config else ()


def _unequal(bench: Bench, run: Measured | None) -> Iterator[Finding]:
    """PL201 on the costs of the stages, measured or given; with a better split of the layers where there is one."""
    costs, p, m = bench.costs, bench.mesh.stages, bench.batch.m
    if costs is None or costs.stages != p or p < 2:
        return
    limit = DETECTORS["PL201"].options["limit"]
    totals = [costs.total_ns(s) for s in range(p)]
    mean = sum(totals) / p
    worst = max(range(p), key=totals.__getitem__)
    if totals[worst] / mean - 1 <= limit:
        return
    if costs.relative:
        title = f"stage {worst} has {percent(totals[worst] / mean - 1)} more to compute than the mean stage, however the layers are split"
    else:
        title = f"stage {worst} computes {seconds(totals[worst])} per micro-batch, {percent(totals[worst] / mean - 1)} longer than the mean stage ({seconds(mean)})"
    yield Finding(
        "PL201",
        "stage-imbalance",
        title,
        Severity.WARNING,
        Confidence.HIGH,
        Where(stages=(worst,)),
        advice=_better_split(bench, costs, m, run)
        or (Advice(f"move layers off stage {worst}, or split a heavy layer: no number of micro-batches mends it"),),
    )


_LEAST_GAIN = 0.02
"""Share of the phase; a split that saves less is within what the simulation can be off."""


def _better_split(bench: Bench, costs: Costs, m: int | None, run: Measured | None) -> tuple[Advice, ...]:
    """Where every layer's cost is given, the best split of all; of a measured run what its report advises after replaying it."""
    told = run.replayed("partition=") if run and run.costs is costs else None
    if told and told.get("advised"):
        return (Advice(f"give the stages {str(told['change']).removeprefix('partition=')}", str(told.get("text", "")).partition(": ")[2] or None),)
    better = split(costs, costs.stages, bench.layers) if bench.layers and not costs.relative else None
    if better is None or better.layers is None or m is None or bench.schedule not in ("1f1b", "gpipe") or costs.stages > MOST_STAGES:
        return ()
    before, after = phase(costs, bench.schedule, m).phase_ns, phase(better, bench.schedule, m).phase_ns
    if after > before * (1 - _LEAST_GAIN):
        return ()
    return (Advice(f"give the stages {', '.join(map(str, better.layers))} layers", f"pipeline phase {seconds(before)} → {seconds(after)}"),)
