"""What would pay: the advised changes by predicted gain, those that are not advised and why, and how far the replay is believed.

All of it is `metrics.what_if` and `metrics.replay` of the report in words; nothing is computed but differences of what stands there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipelog._text import count, percent, seconds, size
from pipelog.replay.measured import LIMIT, RECORDING
from pipelog.replay.what_if import LEAST_ASSUMED, LEAST_GAIN
from pipelog.report import JSON, Report

_MOST_STAGES = 8
"""With more stages only the largest peak is told."""


@dataclass(frozen=True, slots=True)
class Pay:
    """One setting in words. name: `setting=value`; setting: what to set, empty where nothing can be set.

    step, sample (time per sample against now), bubble, compute (mean work of a stage in a step), peak (memory by stage): predicted.
    price: what it costs elsewhere, or why it is not advised.
    """

    name: str
    setting: str
    step: str
    sample: str
    bubble: str
    compute: str
    peak: str
    price: str


@dataclass(frozen=True, slots=True)
class Pays:
    """says: sentences; now: the present setting; advised, others: by predicted gain; believed: how far, or why there is no what-if."""

    says: tuple[str, ...]
    now: Pay | None
    advised: tuple[Pay, ...]
    others: tuple[Pay, ...]
    believed: str


def pays(report: Report) -> Pays | None:
    """None where nothing was replayed."""
    replay, every = report.metrics.get("replay"), list(report.metrics.get("what_if") or [])
    if not replay and not every:
        return None
    now, told = _now(every), _told(every)
    printed = bool((replay or {}).get("printed_step_s"))
    good = [c for c in told if c.get("advised")]
    return Pays(
        tuple(_says(now, good, told, printed=printed)),
        _pay(now, now) if now else None,
        tuple(_pay(c, now) for c in good),
        tuple(_pay(c, now) for c in told if not c.get("advised")),
        believed(replay),
    )


def no_replay(report: Report) -> str:
    """One sentence where a pipeline's step is known, and no other setting can be predicted; else nothing."""
    if report.metrics.get("replay") or report.metrics.get("what_if") or (report.topology["pp"] or 1) < 2:
        return ""
    return (
        "What another setting would give cannot be told: no step could be replayed. That takes profiler traces of every stage whose passes "
        "can be told apart, or a table of operations."
    )


def lines(report: Report, most: int = 3) -> list[str]:
    """The best *most* advised changes as sentences, each with number, peak memory, price and setting."""
    every = list(report.metrics.get("what_if") or [])
    now = _now(every)
    return [_line(c, now) for c in _told(every) if c.get("advised")][:most]


def replay_line(report: Report) -> str:
    """How far the replay is believed, or why not; empty where there is none."""
    return believed(report.metrics.get("replay"))


def _now(every: Iterable[JSON]) -> JSON | None:
    return next((c for c in every if c.get("kind") == "now"), None)


def _told(every: Iterable[JSON]) -> list[JSON]:
    """The changes that have a number, the largest gain first."""
    return sorted((c for c in every if c.get("kind") != "now" and c.get("gain") is not None), key=lambda c: -float(c["gain"]))


def believed(replay: JSON | None) -> str:
    """The error of the replay beside its limit, or the reason why nothing is predicted from it."""
    if not replay:
        return ""
    if replay.get("believed") is False:
        return f"No what-if: {replay.get('reason') or 'the replay is not believed'} (limit {percent(_limit(replay))})."
    own = f"Replayed on its own durations, what was recorded comes out {percent(replay['error'])} off" if replay.get("error") is not None else ""
    half = replay.get("predicted_error")
    if not half:
        return f"{own}; no other setting is predicted from it." if own else ""
    parts = "half of the recorded steps predicts the others" if half.get("halves") == "steps" else "half of a step's micro-batches predicts the step"
    return f"{own}; {parts} with a median error of {percent(half['median'])} (limit {percent(LIMIT)}){_recording(replay)}."


def _limit(replay: JSON) -> float:
    """The limit that was passed: of the error, else of what recording may take."""
    half = replay.get("predicted_error") or {}
    return LIMIT if max(replay.get("error") or 0.0, half.get("median") or 0.0) > LIMIT or replay.get("recording") is None else RECORDING


def _recording(replay: JSON) -> str:
    """What recording took, where the log prints steps that were not recorded."""
    share = replay.get("recording")
    if share is None or abs(share) < 0.005:
        return ""
    more = "longer" if share > 0 else "shorter"
    return f"; recorded steps took {percent(abs(share))} {more} than the printed ones, to which predictions are scaled"


def _says(now: JSON | None, good: list[JSON], told: list[JSON], *, printed: bool) -> Iterable[str]:
    if now is not None and now.get("step_time_s") is not None:
        yield f"Now a step {'that was not recorded ' if printed else ''}takes {_step(now)}{_of(now)}."
    if good:
        alone = " Each is predicted by itself; gains do not add up." if len(good) > 1 else ""
        yield f"{count(len(good), 'change')} would pay; {good[0]['change']} promises most: {_way(good[0])}.{alone}"
    elif told:
        yield f"None of the {count(len(told), 'setting')} looked at is worth its price by the figures that are known."
    cause = next((c for c in told if c.get("kind") == "bound"), None)
    if cause is not None and cause["gain"] > max([LEAST_GAIN, *(c["gain"] for c in good)]):
        yield f"Removing the largest cause would give more: {cause['change']}, at most {_way(cause)}."


def _of(now: JSON) -> str:
    parts = [f"a stage computes {seconds(now['compute_s'] * 1e9)} of it on average"] if now.get("compute_s") is not None else []
    parts += [f"bubble {percent(now['bubble'])}"] if now.get("bubble") is not None else []
    return f" ({', '.join(parts)})" if parts else ""


def _pay(change: JSON, now: JSON | None) -> Pay:
    is_now = change.get("kind") == "now"
    price = str(change.get("price") or "")
    return Pay(
        str(change["change"]),
        str(change.get("setting") or ""),
        _step(change),
        "" if is_now else _way(change),
        percent(change["bubble"]) if change.get("bubble") is not None else "",
        seconds(change["compute_s"] * 1e9) if change.get("compute_s") is not None else "",
        _peak(change, None if is_now else now),
        price if change.get("advised") or is_now else _because(change, price),
    )


def _step(change: JSON) -> str:
    if change.get("step_time_s") is None:
        return ""
    samples = change.get("samples") or 1
    more = f" for {samples:g} times the samples" if samples != 1 else ""
    return f"{seconds(change['step_time_s'] * 1e9)}{more}"


def _way(change: JSON) -> str:
    gain = float(change["gain"])
    return f"{percent(abs(gain))} {'less' if gain >= 0 else 'more'} time per sample"


def _peak(change: JSON, now: JSON | None) -> str:
    """Peak memory of every stage in order, of many the largest; said so where it is the present one, or not known."""
    peaks = change.get("peak_bytes")
    if not peaks:
        return "not known"
    same = "as now: " if now is not None and peaks == now.get("peak_bytes") else ""
    device = f" of {size(change['capacity_bytes'])}" if change.get("capacity_bytes") else ""
    if same or len(peaks) > _MOST_STAGES:
        most = max(range(len(peaks)), key=lambda s: peaks[s])
        return f"{same}at most {size(peaks[most])}{device} (stage {most})"
    return ", ".join(size(b) for b in peaks) + device


def _because(change: JSON, price: str) -> str:
    """Why a change is not advised, by its kind, with the price."""
    kind, gain = change.get("kind"), float(change["gain"])
    if kind == "bound":
        return "no setting does it: what would be left if the cause were gone altogether"
    if kind == "reference":
        return price
    memory = str(change.get("memory") or "")
    if change.get("fits") is False:
        why = memory
    elif gain <= 0:
        why = "it takes longer" + ("; only memory can ask for it" if kind == "memory" else "")
    elif kind == "memory":
        why = f"only if memory allows it, or asks for it{f': {memory}' if memory else ''}"
    else:
        why = f"too small a gain: {percent(LEAST_GAIN)} is asked for, or the error of the replay, and {percent(LEAST_ASSUMED)} where durations are assumed"
    return f"{why}. Price: {price}" if price else why


def _line(change: JSON, now: JSON | None) -> str:
    text = str(change.get("text") or f"{change['change']}: {_step(change)}, {_way(change)}").rstrip(".")
    parts = [text] if change.get("memory") else [text, f"Peak memory: {_peak(change, now)}"]
    parts += [f"Set: {change['setting']}"] if change.get("setting") else []
    return ". ".join(parts)
