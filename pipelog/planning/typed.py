"""What is typed on the command line: lists of stages' costs, of layers, of chunks. Raises BadOption, in one line, for what does not parse."""

from __future__ import annotations

import math
from typing import Any

from pipelog.errors import BadOption
from pipelog.findings import DETECTORS
from pipelog.planning.batch import MOST, MOST_STAGES
from pipelog.planning.config_file import ConfigFile
from pipelog.planning.costs import USUAL_BACKWARD, Measured
from pipelog.planning.plan import Wanted
from pipelog.planning.schedules import SCHEDULES
from pipelog.tables.topology import MOST_RANKS

_MOST_LAYERS = 10_000


def wanted(config: ConfigFile | None, run: Measured | None, settings: list[tuple[str, float]], **given: Any) -> Wanted:
    """Everything that was typed, by the names of the command's options; raises BadOption also where nothing at all was given."""
    limits = {"PL102.limit", "few-micro-batches.limit"}
    for key, value in settings:
        if key not in limits:
            raise BadOption(f"--set {key}: plan has the option PL102.limit alone")
        if not 0 < value < 1:
            raise BadOption(f"--set {key}={value:g}: a share of the pipeline phase, between 0 and 1")
    for name, most in (("stages", MOST_STAGES), ("gpus", MOST_RANKS), ("tp", MOST_STAGES)):
        if (given[name] or 0) > most:
            raise BadOption(f"--{name} {given[name]}: more than any job has")
    for name in ("train_batch", "micro_batch", "accumulation"):
        if (given[name] or 0) > MOST:
            raise BadOption(f"--{name.replace('_', '-')} {given[name]}: no batch is as large")
    if config is None and run is None and not any(v for k, v in given.items() if k not in ("schedules", "chunks")):
        raise BadOption("nothing to plan with: give a ds_config.json, --stages or --from RUN (`pipelog plan --help` lists what there is)")
    return Wanted(
        config,
        run,
        given["stages"],
        given["gpus"],
        given["tp"],
        given["train_batch"],
        given["micro_batch"],
        given["accumulation"],
        stage_costs_ns(given["costs"]),
        None if given["transfer"] is None else given["transfer"] * 1e6,
        layers(given["layers"]),
        schedules(given["schedules"]),
        chunks(given["chunks"]),
        settings[-1][1] if settings else DETECTORS["PL102"].options["limit"],
    )


def stage_costs_ns(text: str | None) -> tuple[tuple[float, float], ...]:
    """`30/60,30/60,75/150,30/60`: forward/backward in ms by stage; a single number is their sum, backward twice as long as forward."""
    out = []
    for part in _parts(text, "--costs"):
        forward, sign, backward = part.partition("/")
        if sign:
            pair = (_positive(forward, "--costs", text), _positive(backward, "--costs", text))
        else:
            whole = _positive(forward, "--costs", text)
            pair = (whole / (1 + USUAL_BACKWARD), whole * USUAL_BACKWARD / (1 + USUAL_BACKWARD))
        out.append((pair[0] * 1e6, pair[1] * 1e6))
    if len(out) > MOST_STAGES:
        raise BadOption(f"--costs: {len(out)} stages are more than any pipeline has")
    return tuple(out)


def layers(text: str | None) -> tuple[float, ...]:
    """`24`: that many equal layers; `2,1,1,1,3`: their relative costs."""
    parts = _parts(text, "--layers")
    if len(parts) == 1:
        number = _positive(parts[0], "--layers", text)
        if not number.is_integer() or number > _MOST_LAYERS:
            raise BadOption(f"--layers {text}: expected how many layers there are, or the cost of each, as in 2,1,1,1,3")
        return (1.0,) * int(number)
    if len(parts) > _MOST_LAYERS:
        raise BadOption(f"--layers: {len(parts)} layers are more than any model has")
    return tuple(_positive(part, "--layers", text) for part in parts)


def chunks(text: str | None) -> tuple[int, ...]:
    """`2,4`: numbers of chunks a stage."""
    found = [_positive(part, "--chunks", text) for part in _parts(text, "--chunks")] or [2.0]
    if any(not n.is_integer() or not 2 <= n <= 1024 for n in found):
        raise BadOption(f"--chunks {text}: expected whole numbers from 2 on")
    return tuple(int(n) for n in found)


def schedules(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of schedules, each once."""
    wanted = [n.strip().lower() for given in names for n in given.split(",") if n.strip()]
    unknown = [n for n in wanted if n not in SCHEDULES]
    if unknown:
        raise BadOption(f"no schedule {unknown[0]!r}: there are {', '.join(SCHEDULES)}")
    return tuple(dict.fromkeys(wanted))


def _parts(text: str | None, option: str) -> list[str]:
    if text is None:
        return []
    parts = [p.strip() for p in text.split(",")]
    if not all(parts):
        raise BadOption(f"{option} {text}: a number is missing between two commas")
    return parts


def _positive(word: str, option: str, text: str | None) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e12:
        raise BadOption(f"{option} {(text or '')[:60]}: {word[:20]!r} is no positive number")
    return value
