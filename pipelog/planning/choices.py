"""Which other numbers are worth a row: micro-batches at the same global batch and beyond it, stages on the same GPUs, schedules."""

from __future__ import annotations

from dataclasses import replace

from pipelog.planning import schedules
from pipelog.planning.options import Bench, Option

_MOST_ROWS = 8
_POWERS = tuple(2**k for k in range(11))


def micro_batches(bench: Bench, limit: float) -> list[Option]:
    """Other m: first every way to cut the same global batch, then larger global batches; with too little known, powers of two.

    limit: of the bubble; the first m that keeps it has a row.
    """
    p, b = bench.mesh.stages, bench.batch
    if p is None or p < 2:
        return []
    each, enough = b.per_replica, schedules.enough(p, limit, bench.v)
    unit = p if bench.schedule == "interleaved" else 1
    if not (each and b.replicas and b.train):
        wanted = {b.m, enough, *(k for k in _POWERS if k <= 4 * enough)} - {None}
        return [_marked(bench, bench.option(p, m or 1), price="") for m in sorted(m for m in wanted if m and m % unit == 0)]
    ways = [m for m in range(unit, each + 1, unit) if each % m == 0] if each <= 1 << 20 else [b.m] if b.m else []
    chosen = _thinned(ways, {m for m in (b.m, next((w for w in ways if w >= enough), None)) if m in ways})
    rows = [bench.option(p, m, micro=each // m) for m in chosen]
    if b.micro and b.m and b.problem is None:
        beyond = sorted(m for m in {2 * b.m, 4 * b.m, enough} if m > b.m)
        rows += [bench.option(p, m, micro=b.micro) for m in beyond if m <= 1 << 20 and m % unit == 0]
    return [_marked(bench, r, price=_price_of_m(bench, r)) for r in rows]


def _thinned(ways: list[int], keep: set[int]) -> list[int]:
    """At most _MOST_ROWS of them, spread over the whole range, with those to keep."""
    if len(ways) <= _MOST_ROWS:
        return ways
    step = (len(ways) - 1) / (_MOST_ROWS - len(keep) - 1)
    return sorted({ways[round(i * step)] for i in range(_MOST_ROWS - len(keep))} | keep)


def _marked(bench: Bench, option: Option, *, price: str) -> Option:
    b = bench.batch
    now = option.stages == bench.mesh.stages and option.m == b.m and option.micro == b.micro and option.train == (b.train or option.train)
    return replace(option, now=now, price="as configured" if now else price)


def _price_of_m(bench: Bench, option: Option) -> str:
    """Beside the bubble: convergence, efficiency of the kernels, memory."""
    b = bench.batch
    if option.train and b.train and option.train != b.train:
        return f"global batch x {option.train / b.train:.3g}: convergence"
    if option.micro is None or b.micro is None or option.micro == b.micro:
        return "the same batch"
    return "larger micro-batch, fewer of them" if option.micro > b.micro else "smaller, less efficient kernels"


def stages(bench: Bench) -> list[Option]:
    """Other depths with the same micro-batch: on the same GPUs, where they are known, m follows from the replicas that are left."""
    b, mesh = bench.batch, bench.mesh
    if b.m is None and not (b.train and b.micro and mesh.gpus):
        return []
    depths = {1, 2, 4, 8, 16, 32, mesh.stages or 1}
    if mesh.gpus is None:
        return [] if b.m is None else [_marked(bench, bench.option(p, b.m), price=_price_of_depth(bench, p)) for p in sorted(depths) if p <= 16]
    rows = []
    for p in sorted(p for p in depths if mesh.gpus % (p * mesh.tp) == 0):
        replicas = mesh.gpus // (p * mesh.tp)
        m = b.m if b.train is None or b.micro is None else b.train // (b.micro * replicas)
        if not m:
            continue
        row = bench.option(p, m, replicas=replicas)
        if b.train is not None and row.train is not None and row.train != b.train:
            row = replace(row, why_not=f"{b.train} cannot be divided by {b.micro} x {replicas} replicas")
        rows.append(_marked(bench, row, price=_price_of_depth(bench, p)))
    return rows


def _price_of_depth(bench: Bench, p: int) -> str:
    now = bench.mesh.stages
    if now is None or p == now:
        return "the depth as configured" if now else ""
    if p < now:
        return f"{now / p:.3g} x the layers on a GPU"
    return "fewer layers on a GPU; more transfers"


def other_schedules(bench: Bench, names: tuple[str, ...], chunks: tuple[int, ...]) -> list[Option]:
    """The same job under other schedules; interleaving once for each number of chunks."""
    p, m = bench.mesh.stages, bench.batch.m
    if p is None or p < 2 or m is None:
        return []
    rows = []
    for name in names:
        for v in chunks if schedules.SCHEDULES[name].chunks else (1,):
            row = bench.option(p, m, schedule=name, v=v)
            rows.append(replace(row, now=name == bench.schedule and v == bench.v))
    return rows


GRID_M = (1, 2, 4, 8, 16, 32, 64)
GRID_P = (2, 4, 8, 16)


def grid(bench: Bench) -> tuple[list[int], list[int]]:
    """(m, p) of the table of bubbles: usual ones, and those of the job."""
    p, m = bench.mesh.stages, bench.batch.m
    return sorted({*GRID_M, *((m,) if m else ())}), sorted({*GRID_P, *((p,) if p and p > 1 else ())})
