"""DeepSpeed's configuration as facts `config.<key>`, by the names of ds_config.json wherever it is printed or stored.

DeepSpeed shows its configuration in two forms (a block of dotted lines, then the user's JSON), launchers carry it as a base64 word,
and it stands in files. All of them come together here: one mapping of names, and one reader of JSON that takes what people and
DeepSpeed write (comments, commas too many or too few, `1.024000e+03` for 1024, True for true, other lines in between).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pipelog.events import Skipped
from pipelog.parsers._facts import fact
from pipelog.parsing import Row

PRINTED = {
    "activation_checkpointing_config": "activation_checkpointing",
    "amp_enabled": "amp.enabled",
    "bfloat16_config": "bf16",
    "bfloat16_enabled": "bf16.enabled",
    "bfloat16_immediate_grad_update": "bf16.immediate_grad_update",
    "communication_data_type": "communication_data_type",
    "dump_state": "dump_state",
    "elasticity_enabled": "elasticity.enabled",
    "float16_config": "fp16",
    "fp16_enabled": "fp16.enabled",
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "initial_dynamic_scale": "initial_dynamic_scale",
    "load_universal_checkpoint": "checkpoint.load_universal",
    "loss_scale": "fp16.loss_scale",
    "memory_breakdown": "memory_breakdown",
    "pipeline": "pipeline",
    "prescale_gradients": "prescale_gradients",
    "steps_per_print": "steps_per_print",
    "train_batch_size": "train_batch_size",
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "wall_clock_breakdown": "wall_clock_breakdown",
    "world_size": "world_size",
    "zero_config": "zero_optimization",
    "zero_enabled": "zero_enabled",
    "zero_optimization_stage": "zero_optimization.stage",
}
"""Names of the printed block that matter → keys of ds_config.json. `world_size` is the data-parallel size, `initial_dynamic_scale`
2 to the power of fp16.initial_scale_power, `zero_enabled` stage > 0: these three have no key of their own in ds_config.json."""

INNER = {
    "activation_checkpointing": (
        "partition_activations",
        "contiguous_memory_optimization",
        "cpu_checkpointing",
        "number_checkpoints",
        "synchronize_checkpoint_boundary",
        "profile",
    ),
    "bf16": ("enabled", "immediate_grad_update", "check_grad_overflow"),
    "fp16": ("enabled", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale"),
    "pipeline": ("stages", "partition", "seed_layers", "activation_checkpoint_interval", "pipe_partitioned", "grad_partitioned"),
    "zero_optimization": ("stage", "overlap_comm", "reduce_scatter", "reduce_bucket_size", "allgather_bucket_size", "contiguous_gradients"),
}
"""Keys taken from the printed values that hold several: what is printed there are DeepSpeed's defaults as well."""

_MOST_ENTRIES = 5000
_DEEPEST = 64
_LONGEST = 100_000
"""Letters in a line of a printed configuration; what is longer is another writer's line."""
_MOST_FOREIGN = 200
"""Lines of other writers in the middle of a printed configuration, which is one write, until it counts as broken off."""

_TOKEN = re.compile(
    r"""[\s,]+
    | (?P<string>"(?:[^"\\]+|\\.)*+"|'(?:[^'\\]+|\\.)*+')
    | (?P<comment>//.*|\#.*|/\*.*?\*/)
    | (?P<remark>/\*.*)
    | (?P<sign>[{}\[\]:])
    | (?P<word>[^\s"'{}\[\]:,/\#]+)""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|Infinity)|true|false|null|NaN|True|False|None", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9_-]{16,}={0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of a JSON object: where it hangs, the word as printed (a list of words in one), whether quoted, its line."""

    path: tuple[str, ...]
    text: str
    quoted: bool
    line: int

    def row(self, prefix: str = "config.") -> Row:
        """Return the fact that it states."""
        path = ("bf16", *self.path[1:]) if self.path[:1] == ("bfloat16",) else self.path
        name = (prefix + ".".join(path)).encode("utf-8", "replace").decode()
        row = fact(name, self.text, self.line)
        return row | {"value": None} if self.quoted else row


@dataclass(slots=True)
class _Frame:
    """An object or a list that is open."""

    sign: str
    path: tuple[str, ...]
    line: int
    key: str | None = None
    colon: bool = False
    items: list[str] = field(default_factory=list)
    plain: bool = True


class Reader:
    """Reads one JSON object from numbered lines; `trouble` says what had to be left out.

    strict: the lines are a log's, where those of other writers may stand in between: a line that holds anything but JSON is left
    out as a whole. Otherwise it is a file: words without quotes are strings, and a bad place costs the rest of its line.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.trouble: list[Skipped] = []
        self._open: list[_Frame] = []
        self._remark = False
        self._given = 0
        self._foreign = 0

    def entries(self, lines: Iterable[tuple[int, str]]) -> Iterator[Entry]:
        """Yield the values in order, up to the end of the object."""
        line, begun = 0, False
        for line, text in lines:
            if self._foreign > _MOST_FOREIGN:
                break
            for kind, word in self._tokens(line, text):
                if kind != "sign" or word == ":":
                    yield from self._word(kind, word, line)
                elif word in "{[":
                    begun = True
                    self._enter(word, line)
                else:
                    yield from self._leave(word, line)
                if self._given > _MOST_ENTRIES or len(self._open) > _DEEPEST:
                    self.trouble.append(Skipped(line, "more values or deeper ones than any DeepSpeed configuration has: the rest is left out"))
                    return
                if begun and not self._open:
                    return
        if begun:
            self.trouble.append(Skipped(line, "the configuration is not closed: it ends in the middle"))

    def _tokens(self, line: int, text: str) -> Iterable[tuple[str, str]]:
        if not self.strict:
            return self._scan(line, text)
        tokens = list(self._scan(line, text)) if len(text) < _LONGEST else [("bad", text)]
        if not tokens or tokens[-1][0] != "bad":
            return tokens
        self._foreign += 1  # another writer's line; but `}` may have lost its line break to it
        return tokens[:-1] if all(word in "}]" for _, word in tokens[:-1]) else []

    def _scan(self, line: int, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        if self._remark:
            end = text.find("*/")
            if end < 0:
                return
            at, self._remark = end + 2, False
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or (self.strict and match["word"] and not _PLAIN.fullmatch(match["word"])):
                if self.strict:
                    yield "bad", text[at:]
                else:
                    self.trouble.append(Skipped(line, f"not JSON: {text[at : at + 60]!r}"))
                return
            at = match.end()
            if match.lastgroup == "remark":
                self._remark = True
            elif match.lastgroup and match.lastgroup != "comment":
                yield match.lastgroup, match.group()

    def _enter(self, sign: str, line: int) -> None:
        path: tuple[str, ...] = ()
        if self._open:
            top = self._open[-1]
            if top.sign == "[":
                top.plain = False
                path = (*top.path, str(len(top.items)))
                top.items.append(sign)
            else:
                if top.key is None:
                    self.trouble.append(Skipped(line, "a value without a key"))
                path = (*top.path, "?" if top.key is None else top.key)
                top.key, top.colon = None, False
        self._open.append(_Frame(sign, path, line))

    def _leave(self, sign: str, line: int) -> Iterator[Entry]:
        begun_by = "{" if sign == "}" else "["
        if all(frame.sign != begun_by for frame in self._open):
            self.trouble.append(Skipped(line, f"{sign} closes nothing"))
            begun_by = self._open[-1].sign if len(self._open) > 1 else ""  # a slip of the finger for the other sign
        if not begun_by:
            return
        while self._open:
            frame = self._open.pop()
            if frame.key is not None:
                self.trouble.append(Skipped(line, f"the key {frame.key[:60]!r} has no value"))
            if frame.sign == "[" and frame.plain and frame.path:
                self._given += 1
                yield Entry(frame.path, f"[{', '.join(frame.items)}]", True, frame.line)
            if frame.sign == begun_by:
                return
            self.trouble.append(Skipped(frame.line, f"{frame.sign} is not closed"))

    def _word(self, kind: str, word: str, line: int) -> Iterator[Entry]:
        if not self._open:
            return
        top, text = self._open[-1], _unquoted(word) if kind == "string" else word
        if top.sign == "[":
            if word != ":":
                top.items.append(word)
        elif word == ":" and kind == "sign":
            top.colon = top.key is not None
        elif top.key is not None and top.colon:
            self._given += 1
            yield Entry((*top.path, top.key), text, kind == "string", line)
            top.key, top.colon = None, False
        else:
            if top.key is not None:
                self.trouble.append(Skipped(line, f"the key {top.key[:60]!r} has no value"))
            top.key = text[:200]


def _unquoted(word: str) -> str:
    try:
        return str(json.loads(word))
    except ValueError:
        return word[1:-1]


def entries_of_word(word: str, line: int) -> list[Entry]:
    """Return the values of a JSON object in base64 (gpt-neox hands its configuration over so); empty where it is no such word."""
    if not _BASE64.fullmatch(word):
        return []
    try:
        text = base64.urlsafe_b64decode(word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4)).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return []
    return list(Reader(strict=False).entries([(line, text)])) if text.lstrip().startswith("{") else []
