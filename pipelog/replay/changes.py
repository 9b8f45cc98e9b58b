"""Durations under another setting: what a change does to the costs of a step, before it is simulated. No input, no judgement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipelog.replay.simulate import Costs

_PLACES = ("forward", "backward", "recompute", "weight", "load", "before_forward", "before_backward")
_EDGES = ("activation", "grad", "send_activation", "recv_activation", "send_grad", "recv_grad")


def typical(costs: Costs) -> Costs:
    """One step of many: the median over steps, then the mean over micro-batches. (steps, replicas, p, m) → (replicas, p, 1).

    Mean, not median: what a stage needs for all micro-batches has to stay what it was.
    """
    return costs.each(lambda a: np.median(a, axis=0).mean(axis=-1, keepdims=True))


def middle(costs: Costs) -> Costs:
    """The median over steps, micro-batch by micro-batch: (steps, replicas, p, m) → (replicas, p, m)."""
    return costs.each(lambda a: np.median(a, axis=0))


def resized(costs: Costs, factor: float) -> Costs:
    """Micro-batches *factor* times as large, with passes and loading in proportion.

    Messages grow with them, but do not shrink below what they take now: how much of it is latency cannot be told from one size. So a
    smaller micro-batch is never made to look better than it is by this.
    """
    scaled = {name: np.asarray(getattr(costs, name)) * factor for name in ("forward", "backward", "recompute", "weight", "load")}
    wires = {name: np.asarray(getattr(costs, name)) * max(factor, 1.0) for name in ("activation", "grad")}
    return replace(costs, **scaled, **wires)


def merged(costs: Costs) -> Costs:
    """Half as many stages: each two neighbours become one, and the message between them goes. (…, p, m), p even."""
    places = {name: (a := _array(costs, name))[..., 0::2, :] + a[..., 1::2, :] for name in _PLACES[:4]}
    places |= {name: _array(costs, name)[..., 0::2, :] for name in ("before_forward", "before_backward")}
    first, last = _array(costs, "load")[..., 0::2, :], _array(costs, "load")[..., 1::2, :]
    edges = {name: _array(costs, name)[..., 1::2, :] for name in _EDGES}
    return Costs(**places, load=np.maximum(first, last), **edges)


def halved(costs: Costs) -> Costs:
    """Twice as many stages: each is cut into two that cost half; a new message is as long as the usual one."""
    places = {name: np.repeat(_array(costs, name) / 2, 2, axis=-2) for name in _PLACES[:4]}
    places |= {name: np.repeat(_array(costs, name), 2, axis=-2) for name in ("before_forward", "before_backward")}
    load = np.zeros_like(places["forward"])
    load[..., [0, -1], :] = _array(costs, "load")[..., [0, -1], :]
    edges = {}
    for name in _EDGES:
        old = _array(costs, name)
        new = np.empty((*old.shape[:-2], 2 * old.shape[-2] + 1, old.shape[-1]))
        new[..., 0::2, :] = np.median(old, axis=-2, keepdims=True)
        new[..., 1::2, :] = old
        edges[name] = new
    return Costs(**places, load=load, **edges)


def interleaved(costs: Costs, v: int) -> Costs:
    """Every stage in v chunks of equal cost, in the order of places; a message from the last stage to the first is as long as the usual one."""
    places = {name: np.concatenate([_array(costs, name) / v] * v, axis=-2) for name in _PLACES[:4]}
    places |= {name: np.concatenate([_array(costs, name)] * v, axis=-2) for name in ("before_forward", "before_backward")}
    load = np.zeros_like(places["forward"])
    load[..., [0, -1], :] = _array(costs, "load")[..., [0, -1], :]
    edges = {}
    for name in _EDGES:
        old = _array(costs, name)
        wrap = np.median(old, axis=-2, keepdims=True)
        edges[name] = np.concatenate([piece for i in range(v) for piece in ((wrap, old) if i else (old,))], axis=-2)
    return Costs(**places, load=load, **edges)


def split(costs: Costs, shares: np.ndarray) -> Costs:
    """Another partition: shares[t, s] is how much of the old stage s the new stage t does. Messages and idle times stay where they are."""
    return replace(costs, **{name: np.einsum("ts,...sm->...tm", shares, _array(costs, name)) for name in _PLACES[:4]})


def best_split(weights: np.ndarray, parts: int) -> np.ndarray:
    """Borders (parts + 1,) of the contiguous split of layers that makes the heaviest part lightest, none empty.

    By bisection on the weight of the heaviest part, which a greedy pass can check.
    """
    low, high = float(weights.max()), float(weights.sum())
    for _ in range(60):
        middle = (low + high) / 2
        if len(_greedy(weights, middle, parts)) - 1 <= parts:
            high = middle
        else:
            low = middle
    borders = _greedy(weights, high * (1 + 1e-12), parts)
    while len(borders) - 1 < parts:  # fewer parts than wanted: halve the longest, which makes none heavier
        widths = np.diff(borders)
        at = int(widths.argmax())
        borders = np.insert(borders, at + 1, borders[at] + widths[at] // 2)
    return borders


def _greedy(weights: np.ndarray, limit: float, parts: int) -> np.ndarray:
    borders, filled = [0], 0.0
    for i, weight in enumerate(weights):
        if filled + weight > limit and filled > 0:
            borders.append(i)
            filled = 0.0
            if len(borders) > parts + 1:
                break
        filled += weight
    return np.array([*borders, len(weights)])


def _array(costs: Costs, name: str) -> np.ndarray:
    """A kind of duration at full size (…, places or edges, m or 1)."""
    value = np.asarray(getattr(costs, name), float)
    forward = np.asarray(costs.forward)
    rows = forward.shape[-2] - 1 if name in _EDGES else forward.shape[-2]
    return np.broadcast_to(value, (*forward.shape[:-2], rows, forward.shape[-1])) if value.ndim < forward.ndim else value
