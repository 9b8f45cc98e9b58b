"""The batch arithmetic: train batch = micro-batch x micro-batches x data-parallel replicas, as DeepSpeed derives and checks it.

Source: DeepSpeed's `runtime/config.py` (v0.3 - v0.19). With a pipeline, what it calls world size there is the number of replicas, GPUs /
(stages x tensor-parallel ranks), and gradient_accumulation_steps is m: the micro-batches that one replica sees in a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from pipelog._text import count
from pipelog.errors import BadOption

Source = Literal["given", "derived", "default"]

AUTO = "auto"
"""What Hugging Face's Trainer fills in from its own arguments before DeepSpeed sees it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a configuration states: a number, "auto", or null where it states nothing."""

    train: int | str | None = None
    micro: int | str | None = None
    m: int | str | None = None

    @property
    def auto(self) -> tuple[str, ...]:
        """The keys that somebody else fills in later."""
        return tuple(key for key, value in zip(KEYS, (self.train, self.micro, self.m), strict=True) if value == AUTO)


KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@dataclass(frozen=True, slots=True)
class Mesh:
    """GPUs, stages and tensor-parallel ranks of a stage; null where not known."""

    gpus: int | None = None
    stages: int | None = None
    tp: int = 1

    @property
    def replicas(self) -> int | None:
        """Data-parallel replicas: pipelines side by side; null where not known or where the GPUs cannot be divided."""
        if self.gpus is None or self.stages is None or self.gpus % (self.stages * self.tp):
            return None
        return self.gpus // (self.stages * self.tp)

    @property
    def problem(self) -> str | None:
        """Why the GPUs cannot be divided into pipelines."""
        if self.gpus is None or self.stages is None or self.gpus % (self.stages * self.tp) == 0:
            return None
        ranks = f" x {count(self.tp, 'tensor-parallel rank')} = {self.stages * self.tp} GPUs" if self.tp > 1 else ""
        return f"{count(self.gpus, 'GPU')} cannot be divided into pipelines of {count(self.stages, 'stage')}{ranks}"


@dataclass(frozen=True, slots=True)
class Batch:
    """The three sizes and the replicas, null where not known. source: given, derived or default, by name of the field.

    problem: why they do not multiply, in the words of rule PL103; null where they do, or where too little is known.
    """

    train: int | None = None
    micro: int | None = None
    m: int | None = None
    replicas: int | None = None
    source: dict[str, Source] = field(default_factory=dict)
    problem: str | None = None

    @property
    def per_replica(self) -> int | None:
        """Samples that one replica sees in a step: micro-batch x m, or the train batch over the replicas."""
        if self.train and self.replicas:
            return self.train // self.replicas if self.train % self.replicas == 0 else None
        return self.micro * self.m if self.micro and self.m else None

    @property
    def global_count(self) -> int | None:
        """Micro-batches of all replicas, train batch / micro-batch: what m is often taken for; null where that is m itself or no number."""
        if not (self.train and self.micro) or self.train % self.micro:
            return None
        every = self.train // self.micro
        return every if every != self.m else None


def number(key: str, value: object) -> int | str | None:
    """A batch size as a configuration may write it: a whole number from 1 on, or "auto". Raises BadOption for anything else."""
    if value is None or value == AUTO:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer() and 1 <= value <= MOST:
        return int(value)
    raise BadOption(f"{key} is {str(value)[:60]!r}: it has to be a whole number from 1 on, or left out")


MOST = 1 << 40
"""No batch is larger, and no other number here."""
MOST_STAGES = 4096
"""More than any pipeline has."""


def batch(sizes: Sizes, replicas: int | None) -> Batch:
    """Derive what is missing as DeepSpeed does, and say what does not multiply.

    Without replicas they follow from the three sizes. DeepSpeed takes m = 1 where neither m nor one of the two others is given; nothing
    is taken for a value that is "auto".
    """
    train, micro, m = (v if isinstance(v, int) else None for v in (sizes.train, sizes.micro, sizes.m))
    source: dict[str, Source] = {name: "given" for name, v in (("train", train), ("micro", micro), ("m", m)) if v is not None}
    known = Batch(train, micro, m, replicas, source)
    if replicas is None:
        return _without_replicas(known)
    if known.train and known.micro and known.m:
        return replace(known, problem=_product(known))
    if not known.m and not sizes.auto and (known.train is None or known.micro is None) and (known.train or known.micro):
        known = replace(known, m=1, source=known.source | {"m": "default"})
    return _third(known)


def _third(known: Batch) -> Batch:
    """The one that is missing, where the two others and the replicas are known."""
    train, micro, m, replicas = known.train, known.micro, known.m, known.replicas or 1
    if train and micro and not m:
        if train % (micro * replicas):
            return replace(
                known, problem=f"train batch {train} cannot be divided by micro-batch {micro} x {_replicas(replicas)} = {micro * replicas}"
            )
        return replace(known, m=train // (micro * replicas), source=known.source | {"m": "derived"})
    if train and m and not micro:
        if train % (m * replicas):
            return replace(known, problem=f"train batch {train} cannot be divided by {_ms(m)} x {_replicas(replicas)} = {m * replicas}")
        return replace(known, micro=train // (m * replicas), source=known.source | {"micro": "derived"})
    if micro and m and not train:
        return replace(known, train=micro * m * replicas, source=known.source | {"train": "derived"})
    return known


def _without_replicas(known: Batch) -> Batch:
    """The replicas that the three sizes ask for."""
    if not (known.train and known.micro and known.m):
        return known
    each = known.micro * known.m
    if known.train % each:
        return replace(
            known, problem=f"train batch {known.train} is not micro-batch {known.micro} x {_ms(known.m)} = {each} times any number of replicas"
        )
    return replace(known, replicas=known.train // each, source=known.source | {"replicas": "derived"})


def _product(b: Batch) -> str | None:
    assert b.train and b.micro and b.m and b.replicas  # noqa: PT018
    product = b.micro * b.m * b.replicas
    if product == b.train:
        return None
    return f"train batch {b.train} is not micro-batch {b.micro} x {b.m} micro-batches x {b.replicas} data-parallel replicas = {product}"


def _ms(m: int) -> str:
    return f"{m} micro-batches" if m > 1 else "1 micro-batch"


def _replicas(n: int) -> str:
    return f"{n} data-parallel replicas"


@dataclass(frozen=True, slots=True)
class Fit:
    """One way to make the numbers multiply: what to change, what they are then, and its price."""

    change: str
    price: str
    train: int
    micro: int
    m: int
    replicas: int
    stages: int
    gpus: int


def fits(b: Batch, mesh: Mesh) -> tuple[Fit, ...]:
    """What would fit, one number changed each time; none where they multiply already or too little is known."""
    if b.problem is None or not (b.train and b.replicas and mesh.gpus and mesh.stages) or b.source.get("replicas") == "derived":
        return ()
    whole = _whole(b, mesh) if b.micro and b.m else _divided(b, mesh)
    return tuple(dict.fromkeys(whole))


def _whole(b: Batch, mesh: Mesh) -> list[Fit]:
    """All three are given: change any one of them, or the mesh."""
    train, micro, m, replicas = b.train or 0, b.micro or 0, b.m or 0, b.replicas or 0
    stages, gpus, tp = mesh.stages or 0, mesh.gpus or 0, mesh.tp
    same = "the global batch stays"
    found = []
    if train % (micro * replicas) == 0:
        new = train // (micro * replicas)
        found.append(Fit(f"gradient_accumulation_steps {m} → {new}", same, train, micro, new, replicas, stages, gpus))
    if train % (m * replicas) == 0:
        new = train // (m * replicas)
        price = f"{same}; every micro-batch keeps {_times(new, micro)} the activations"
        found.append(Fit(f"train_micro_batch_size_per_gpu {micro} → {new}", price, train, new, m, replicas, stages, gpus))
    new = micro * m * replicas
    found.append(Fit(f"train_batch_size {train} → {new}", "another global batch, which changes convergence", new, micro, m, replicas, stages, gpus))
    if train % (micro * m) == 0:
        need = train // (micro * m)
        found.append(
            Fit(
                f"GPUs {gpus} → {need * stages * tp}",
                f"{_times(need, replicas)} the GPUs, {count(need, 'replica')}",
                train,
                micro,
                m,
                need,
                stages,
                need * stages * tp,
            )
        )
        if gpus % (need * tp) == 0 and gpus // (need * tp) != stages:
            new = gpus // (need * tp)
            price = f"a stage holds {_times(stages, new)} the layers, in the memory of one GPU" if new < stages else "more stages, more transfers"
            found.append(Fit(f"stages {stages} → {new}", price, train, micro, m, need, new, gpus))
    return found


def _divided(b: Batch, mesh: Mesh) -> list[Fit]:
    """The train batch cannot be divided: the nearest ones that can, and the largest other size that divides it."""
    train, replicas = b.train or 0, b.replicas or 1
    kept, name = (b.micro, "micro") if b.micro else (b.m or 1, "m")
    stages, gpus = mesh.stages or 0, mesh.gpus or 0

    def fit(change: str, price: str, whole: int, size: int) -> Fit:
        other = whole // (size * replicas)
        return Fit(change, price, whole, *((size, other) if name == "micro" else (other, size)), replicas, stages, gpus)

    unit = kept * replicas
    near = [n for n in (train // unit * unit, (train // unit + 1) * unit) if n]
    found = [fit(f"train_batch_size {train} → {n}", "another global batch, which changes convergence", n, kept) for n in near]
    if train % replicas == 0:
        each = train // replicas
        size = next(n for n in range(min(kept, each), 0, -1) if each % n == 0)
        key = KEYS[1] if name == "micro" else KEYS[2]
        found.insert(0, fit(f"{key} {kept} → {size}", "the global batch stays", train, size))
    return found


def _times(new: int, old: int) -> str:
    """In words: twice, half, 1.5 times."""
    ratio = new / old
    return {2.0: "twice", 0.5: "half"}.get(ratio, f"{ratio:.3g} times")
