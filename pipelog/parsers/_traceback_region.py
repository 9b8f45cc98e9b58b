"""Regions of tracebacks: which exceptions the lines of one writer tell of, in which chains, and where they were raised.

Lines of a writer may come from several processes: torch prefixes tracebacks with the rank since 2.2 only. Tracebacks with a margin of
their own (`probe:   File …`, `(Worker pid=4)   File …`, the bars of exception groups) are told apart by it; the others stand one in
another when processes die together. Then every exception line is still found; who raised which is a guess in the order of their
beginnings, and frames are given where all of them have the same, or where only one was under way.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from pipelog.parsers._raised import Chain, Frame, Raised
from pipelog.parsers._traceback_lines import (
    BOX,
    CONNECTORS,
    FRAME,
    GATHERED,
    GOES_ON,
    IGNORED,
    LONG,
    MARK,
    MOST_TEXT,
    RICH_FRAME,
    STAMP,
    STOPS,
    SUB,
    SUB_EXCEPTION,
    TABLE_HOST,
    TABLE_RANK,
    TABLE_TRACE,
    UNFINISHED,
    UNTRACED,
    is_exception,
    is_quoted,
    is_quoted_after,
)

_GAP_OPEN, _GAP_CLOSED, _ABANDONED = 200, 8, 20
"""Lines of something else after which a region ends: where an exception is awaited, where none is; and after which a new traceback means
that the one before was never finished."""
_LINKED = 100
"""Lines after which `During handling of the above exception` waits for no traceback any more."""
_MOST_LINES = 50_000
"""A region over so many lines of the file ends as soon as no exception is awaited."""
_MOST_TABLE = 2000
_MOST_MARGINS = 64
_MOST_TOGETHER = 256
"""Tracebacks that are kept in mind where they stand one in another without end, or wait for their first frame."""


@dataclass(slots=True, eq=False)
class _Begun:
    """A traceback whose exception is still to come. cause: the exception that it goes on from; outer: the one that it is the origin of."""

    line: int
    margin: str
    chain: Chain
    cause: Raised | None = None
    outer: Raised | None = None
    raised: Raised | None = None


@dataclass(slots=True, eq=False)
class _Strand:
    """Tracebacks with the same margin. cluster: those begun since none was under way; ended: exceptions that a connector may go on from."""

    margin: str
    open: list[_Begun] = field(default_factory=list)
    cluster: list[_Begun] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    ended: list[_Begun] = field(default_factory=list)
    links: list[tuple[Raised, Chain, int]] = field(default_factory=list)
    mixed: bool = False
    last: Raised | None = None
    structure: int = 0
    folded: str = ""


class Region:
    """Reads the lines of one writer in order. strict: they all are of one process and of its tracebacks (torch's prefix).

    unfinished: lines of tracebacks whose exception never came; reached: the last frame of those that stood alone.
    """

    def __init__(self, *, strict: bool) -> None:
        self.chains: list[Chain] = []
        self.unfinished: list[int] = []
        self.reached: dict[int, Frame] = {}
        self._strict = strict
        self._strands: dict[str, _Strand] = {}
        self._margins: list[tuple[re.Pattern[str], _Strand]] = []
        self._waiting: list[_Begun] = []
        self._first = 0
        self._count = 0
        self._foreign = 0
        self._ignored = 0
        self._group: Chain | None = None
        self._after_sub = False
        self._table: Chain | None = None
        self._borders = 0

    # ---- lines

    def feed(self, number: int, text: str) -> bool:
        """Take the next line; False where the region has ended."""
        self._count += 1
        self._first = self._first or number
        if MARK in text:
            known = self._mark(number, text)
        elif '  File "' in text and (frame := FRAME.match(text)):
            known = self._frame(number, frame)
        else:
            known = self._other(number, text)
        if known:
            self._foreign = 0
            return number - self._first < _MOST_LINES or self._awaits()
        self._foreign += 1
        if self._table is not None:
            return self._foreign < _MOST_TABLE
        return self._foreign < (_GAP_OPEN if self._awaits() else _GAP_CLOSED)

    def _awaits(self) -> bool:
        return bool(self._waiting) or any(strand.open for strand in self._strands.values())

    def close(self) -> None:
        """No more lines: what is still under way was never finished."""
        for strand in self._strands.values():
            self._settle(strand, over=True)
        self.unfinished += [begun.line for begun in self._waiting]
        self._waiting = []
        self.chains = [chain for chain in self.chains if chain.raised]

    @property
    def begun(self) -> bool:
        """Whether there is anything."""
        return bool(self._waiting or self._strands or self.chains or self._ignored > 0)

    def _mark(self, number: int, text: str) -> bool:
        before, *rest = text.split(MARK)
        marks = sum(after.startswith((":", " ─", " -")) and not is_quoted_after(after) for after in rest)
        if not marks or is_quoted(before):
            return False
        original = before.endswith("Original ")
        before = before.removesuffix("Original ")
        group = before.endswith("Exception Group ")
        before = "" if BOX.match(before) else before.removesuffix("Exception Group ")
        repeated = before.endswith(TABLE_TRACE)
        margin, strand, head = self._own(before)
        if head.isspace() and len(head) > 1:  # indented: another log is quoted
            return False
        if strand is not None and strand.open and head and is_exception(head.strip(), sure=True):  # glued to the line before
            self._raise(strand, number, head.strip())
            before, strand, head = margin, strand if margin else self._strand(""), ""
        whose = GATHERED.match(rest[-1]) if marks == 1 else None
        for _ in range(marks):
            self._begin(number, before, strand if not head else None, original=original, group=group, repeated=repeated)
            self.chains[-1].rank = int(whose["rank"]) if whose else self.chains[-1].rank
        return True

    def _begin(self, number: int, before: str, strand: _Strand | None, *, original: bool, group: bool, repeated: bool) -> None:
        begun = _Begun(number, before, Chain(number, first=not self.chains))
        self.chains.append(begun.chain)  # those that stay empty are dropped in the end
        if self._ignored and self._count - self._ignored <= 2:
            begun.chain.stream = "ignored"
        elif repeated:
            begun.chain.stream = "repeated"
            if self._table is not None:
                begun.chain.rank, begun.chain.host = self._table.rank, self._table.host
        elif re.search(r"(?i)\b(?:error|critical|exception|fatal|warning|warn|info|debug)\b", before):
            begun.chain.stream = "logged"
        if self._group is not None and (not before or not before.strip().startswith("|")) and not group:
            self._group = None
        if self._group is not None:
            begun.chain = self._group
        if group and self._group is None:
            self._group = begun.chain
        if original:
            begun.outer = self._outer(strand)
        if not before and strand is None:
            strand = self._strand("")
        if strand is None:
            self._waiting.append(begun)
            if len(self._waiting) > _MOST_TOGETHER:
                self.unfinished.append(self._waiting.pop(0).line)
        else:
            self._attach(strand, begun)

    def _outer(self, strand: _Strand | None) -> Raised | None:
        """The exception whose original traceback begins: `Caught … in DataLoader worker process 2.`"""
        if strand is None:
            return None
        taken = {begun.outer for begun in strand.cluster}
        caught = (b.raised for b in (*strand.ended, *strand.cluster) if b.raised and "Caught " in b.raised.text[0])
        return next((raised for raised in caught if raised not in taken), None)

    def _attach(self, strand: _Strand, begun: _Begun) -> None:
        if strand.open and (self._strict or self._foreign >= _ABANDONED):
            self._settle(strand, over=True)
        if len(strand.cluster) > _MOST_TOGETHER:
            done = [other for other in strand.cluster if other.raised]
            strand.cluster, strand.frames, strand.mixed = [*done[-_MOST_TOGETHER // 4 :], *strand.open], [], True
        strand.links = [link for link in strand.links if self._count - link[2] <= _LINKED]
        if begun.outer is not None:
            begun.chain = self._chain_of(begun.outer) or begun.chain
        elif strand.links:
            begun.cause, begun.chain, _ = strand.links.pop(0)
        strand.open.append(begun)
        strand.cluster.append(begun)
        strand.last = None
        strand.structure = self._count

    def _chain_of(self, raised: Raised) -> Chain | None:
        return next((chain for chain in reversed(self.chains) if raised in chain.raised), None)

    def _frame(self, number: int, match: re.Match[str]) -> bool:
        margin = match["margin"]
        strand = self._strands.get(_key(margin))
        if self._waiting:
            begun = next((b for b in self._waiting if _key(b.margin) == _key(margin)), self._waiting[0])
            another = strand is not None and strand.open and begun.chain.stream != "logged" and begun.margin.endswith((" ", ":", "\t"))
            if _key(begun.margin) == _key(margin) or not another:
                self._waiting = [b for b in self._waiting if b is not begun]
                strand = strand or self._strand(margin)
                self._attach(strand, begun)
        if strand is None:
            return False
        if not strand.open:
            strand.last = None
            return False
        strand.frames.append(Frame(number, match["path"], match["at"], (match["function"] or "").strip()))
        strand.structure = self._count
        return True

    def _other(self, number: int, text: str) -> bool:
        if self._table is not None and self._row(text):
            return True
        if text.startswith(IGNORED):
            self._ignored = self._count
            return True
        if self._group is not None and SUB.match(text):
            self._after_sub = True
            return True
        _, strand, own = self._own(text)
        after_sub, self._after_sub = self._after_sub, False
        if after_sub and (sub := SUB_EXCEPTION.match(text)) and self._group is not None and is_exception(sub["own"].rstrip()):
            self._group.raised.append(Raised(number, [sub["own"].strip()], len(sub["margin"])))
            return True
        if strand is None:
            return self._untraced(number, text)
        if not own.strip():
            strand.last = None
            return False
        if own.startswith(CONNECTORS):
            return self._connect(strand)
        if self._goes_on(strand, number, own):
            return True
        if own[0] in " \t":
            strand.structure = self._count if strand.open else strand.structure
            return bool(strand.open)
        if strand.open and own[0] in "│|╭╰+":
            self._boxed(strand, number, own)
            return True
        if strand.open and is_exception(own.rstrip(), sure=strand.structure < self._count - 1 and not self._strict):
            self._raise(strand, number, own.strip())
            return True
        return self._untraced(number, own)

    def _boxed(self, strand: _Strand, number: int, own: str) -> None:
        """A line of a box that rich draws; paths that do not fit are folded."""
        inside = own[1:].rstrip(" │|").removeprefix(" ")
        tried = (RICH_FRAME.match(text) for text in (inside, f"{strand.folded} {inside}", strand.folded + inside))
        if rich := next(filter(None, tried), None):
            strand.frames.append(Frame(number, rich["path"], rich["at"], rich["function"]))
        strand.folded = "" if rich or inside[:1] in " ❱" or len(inside) > 400 else inside
        strand.structure = self._count

    def _untraced(self, number: int, text: str) -> bool:
        if not text.startswith(UNTRACED):
            return False
        self.chains.append(Chain(number, [Raised(number, [text.strip()])], first=not self.chains))
        return True

    def _row(self, text: str) -> bool:
        """A line of torchrun's table of failures."""
        assert self._table is not None
        if match := TABLE_RANK.match(text):
            self._table.rank = int(match["rank"])
        elif match := TABLE_HOST.match(text):
            self._table.rank, self._table.host = None, match["host"]
        elif text.startswith("====="):
            self._borders += 1
            self._table = self._table if self._borders < 2 else None
        else:
            return False
        return True

    # ---- exceptions

    def _raise(self, strand: _Strand, number: int, text: str) -> None:
        caught = "Caught " in text and " in " in text
        begun = next((b for b in strand.open if not (caught and b.outer)), strand.open[0])
        strand.open.remove(begun)
        raised = Raised(number, [text], len(strand.margin) if self._group is begun.chain else 0)
        begun.raised = raised
        chain = begun.chain.raised
        if begun.outer is not None and begun.outer in chain:
            chain.insert(chain.index(begun.outer), raised)
        elif begun.cause is not None and begun.cause is not chain[-1] and begun.cause in chain:
            chain.insert(chain.index(begun.cause) + 1, raised)
        else:
            chain.append(raised)
        strand.last = raised
        if text.partition(":")[0].endswith("ChildFailedError"):
            self._table, self._borders, strand.last = Chain(number), 0, None
        if not strand.open:
            self._settle(strand)

    def _settle(self, strand: _Strand, *, over: bool = False) -> None:
        """All tracebacks of the cluster have ended, or the rest never will: give them their frames."""
        if over:
            self.unfinished += [begun.line for begun in strand.open]
            if len(strand.cluster) == len(strand.open) == 1 and strand.frames and not strand.mixed:
                self.reached[strand.open[0].line] = strand.frames[-1]
        raised = [begun.raised for begun in strand.cluster if begun.raised]
        if raised:
            counted = Counter((f.path, f.at, f.function) for f in strand.frames)
            same = len(raised) == len(strand.cluster) and not strand.mixed and all(not n % len(raised) for n in counted.values())
            if same:
                first = {(f.path, f.at, f.function): f for f in reversed(strand.frames)}
                seen = list(strand.frames) if len(raised) == 1 else [first[key] for key in counted]
                for each in raised:
                    each.frames = seen
            strand.ended = [begun for begun in strand.cluster if begun.raised]
        elif over:
            strand.ended = []
        if over:
            strand.open = []
        if not strand.open:
            strand.cluster, strand.frames, strand.mixed = [], [], False

    def _connect(self, strand: _Strand) -> bool:
        """An exception of the last ones goes on: the first that does not yet."""
        done = [begun for begun in (*strand.ended, *strand.cluster) if begun.raised]
        taken = {begun.cause for begun in (*strand.cluster, *strand.ended)} | {raised for raised, _, _ in strand.links}
        for begun in done:
            raised = begun.raised
            if raised is not None and begun.outer is not None and _class(raised) == _class(begun.outer):
                raised = begun.outer  # the worker's own chain is complete: what goes on is what was made of it
            if raised is not None and raised not in taken:
                strand.links.append((raised, begun.chain, self._count))
                break
        strand.last = None
        return bool(done)

    def _goes_on(self, strand: _Strand, number: int, own: str) -> bool:
        """Whether a line belongs to the last exception's message; then it is added."""
        raised = strand.last
        if raised is None:
            return False
        awaited = raised.text[-1] == "Last error:"
        if STOPS.match(own):
            strand.last = raised if self._strict and not awaited else None
            return False
        if not (self._strict or awaited or GOES_ON.match(own)):
            if strand.open:
                return False
            if not (own[0] in " \t" or UNFINISHED.search(raised.text[-1]) or LONG.search(raised.text[0])):
                strand.last = None
                return False
        if len(raised.text) > MOST_TEXT:
            return self._strict
        if awaited and own.strip():
            raised.told = number, own.strip()
        raised.text.append(own.rstrip())
        return True

    # ---- margins

    def _strand(self, margin: str) -> _Strand:
        key = _key(margin)
        if key not in self._strands:
            strand = self._strands[key] = _Strand(margin)
            if key:
                parts = STAMP.split(margin)
                self._margins.append((re.compile(STAMP.pattern.join(re.escape(part) for part in parts)), strand))
                self._margins.sort(key=lambda pair: -len(pair[1].margin))
                if len(self._margins) > _MOST_MARGINS:
                    self._margins = [pair for pair in self._margins if pair[1].open or pair[1] is strand]
                    self._strands = {k: s for k, s in self._strands.items() if not k or s.open or s is strand}
        return self._strands[key]

    def _own(self, text: str) -> tuple[str, _Strand | None, str]:
        """(margin, strand, text behind the margin) of a line."""
        for pattern, strand in self._margins:
            if match := pattern.match(text):
                return match.group(), strand, text[match.end() :]
            if text.rstrip() == strand.margin.rstrip():
                return strand.margin, strand, ""
        return "", self._strands.get(""), text


def _key(margin: str) -> str:
    return STAMP.sub("#", margin)


def _class(raised: Raised) -> str:
    return raised.text[0].partition(":")[0]
