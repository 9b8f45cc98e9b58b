"""What stands before a record: launcher prefixes, logger stamps, `[Rank N]`. Parsed here and nowhere else.

Launchers put prefixes in front of every line, several on top of one another (`worker-3: [default5]:[rank21]: Traceback`). Those
that cannot be mistaken are always looked for; `host: `, `5: `, `[5] `, `> ` and the like mean a prefix only where most lines of
the file have one, so they are told from a sample of the file.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._stamps import YEARLESS, syslog_ns
from pipelog.reading.streams import ANSI

_ANSI_RE = re.compile(ANSI)

_UTC_STAMP = r"(?P<utc>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)"
_UTC = rf"{_UTC_STAMP}(?:Z|(?P<offset>[+-]\d\d:?\d\d)):? (?:std(?:out|err) [FP] )?"
_CERTAIN = (  # (name, expression, share of lines from which on it belongs to the file)
    ("utc", _UTC, 0.2),  # kubectl logs --timestamps, containerd's own files
    ("determined", rf"\[{_UTC_STAMP}Z\] (?:(?P<host>[0-9a-f-]{{8,64}}) )?\|\| (?:\[rank=(?P<ranked>\d{{1,7}})\] )?", 0.2),
    ("pod", r"\[pod/(?P<pod>[^/\]\s]+)/[^\]\s]+\] ", 0.2),  # kubectl logs --prefix
    (  # mpirun --tag-output, with --timestamp-output; prterun --output tag-detailed
        "mpi",
        r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?\[(?:\d+|[^\]\s]*@\d+),(?P<task>\d+)\](?:\[(?P<host>[^\]\s:]+):\d+\])?<std(?:out|err)>: ?",
        0.2,
    ),
    ("sagemaker", r"\[\d+,mpirank:(?P<task>\d+),(?P<host>[^\]\s]+)\]<std(?:out|err)>: ?", 0.2),
    ("skypilot", r"\((?P<host>head|worker\d{1,5}), rank=\d{1,5}, pid=\d+(?:, ip=[\w.:-]+)?\) ", 0.2),  # the rank and the process are the node's
    ("vertex", r"(?P<host>workerpool\d-\d{1,5})[ \t]+(?:INFO|ERROR|WARNING|NOTICE|DEBUG|CRITICAL|DEFAULT)[ \t]", 0.2),
    (
        "gcloud",  # gcloud ai custom-jobs stream-logs
        r"[A-Z]{4,8}[ \t]+(?P<local_time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) [+-]\d{4}[ \t]+(?P<host>workerpool\d-\d{1,5})[ \t]+",
        0.2,
    ),
    ("ray", r"\((?P<actor>\w[^()]{0,80}? pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:-]+))?)\) ", 0.2),  # without an address: on the driver's own host
    ("syslog", r"(?P<yearless>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>[A-Za-z0-9][A-Za-z0-9_.-]*) [\w./@-]+(?:\[\d+\])?: ", 0.5),  # journalctl
    ("ts", r"(?P<yearless>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) ", 0.6),  # moreutils
)
_ROLE = re.compile(r"\[([A-Za-z_][A-Za-z_-]*?)\d+\]:")  # torchrun --tee: [default3]:, whose word is the role's name
_BY_COUNT = (
    ("quote", r"(?:> ?)+", 0.9),  # quoted in a ticket or a mail
    ("label", r" *(?P<task>\d+):(?: |$)", 0.6),  # srun --label
    ("rank0", r"\[(?P<task>\d+)\]:? ", 0.9),  # mpiexec -prepend-rank, torchrun --log-line-prefix-template
    ("ranked", r"[\[(|]? ?(?i:(?:global[ _-]?)?rank)(?: ?[:=#] ?|[ _-])?(?P<ranked>\d{1,7})(?:/\d+| of \d+)?[\])|]?(?:: ?| - | ?\| ?| )", 0.6),
    ("stern", r"(?P<pod>[a-z0-9][a-z0-9-]*-(?:\d{1,4}|[a-z0-9]{5})) [a-z][a-z0-9-]* ", 0.9),
    ("host", r"(?P<host>[A-Za-z0-9][A-Za-z0-9_.-]*):(?: |$)", 0.6),  # pdsh
    ("stream", r"(?:[\w-]+\.)?(?:D\d+|(?P<host>[A-Za-z0-9][A-Za-z0-9_-]*)) \[std(?:out|err)\] ", 0.9),  # milabench: NAME.HOST, NAME.DEVICE
    ("compose", r"(?P<host>[A-Za-z0-9][A-Za-z0-9_.-]*) +\| ", 0.9),  # docker compose
    ("stamp", r"(?P<local_time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?) (?:\| )?", 0.9),  # ts '%F %T', a script's own
    ("numbers", r" *\d+(?:\t|[:-] ?)", 0.95),  # cat -n, grep -n
)
_NOT_HOSTS = re.compile(
    r"(?i)^(warning|info|error|debug|critical|success|trace|notice|traceback|stderr|stdout|srun|slurmstepd.*|\d+|ninja|wandb|fatal|usage|note|loss|step|steps|epoch|stage|rank|kernel|nvrm|mce|nfs|lustre|lustreerror|lneterror)$"
)
_RANK = r"\[rank(?P<rank>\d+)\]: ?"  # torch 2.2+ puts it before every line of a traceback
_NO_PREFIX = re.compile(rf"{_RANK}|RANK=\d+ [A-Z]+\b|\[Rank \d+\] \(")
"""torch's own, which is looked for anyhow; prints of DeepSpeed and Megatron whose parsers want it."""
_GLUED = re.compile(r"(?<=[^\s\"'`(\[])\[rank(?P<rank>\d+)\]: ")
"""The same in the middle of a line, right behind what another rank has not ended."""
_BEHIND = r"^.*[^\s\"'`(\[]\[rank(?P<rank>\d{1,9})\]: "
"""A head in which such a one stands: the last is the writer's."""
_COLOURS = rf"(?:{ANSI})*"

_LOGGER = r"^\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3})\] \[[A-Z]+\] \[[^\]]*\] (?:\[Rank (?P<rank>-?\d{1,9})\] )?"
_PLAIN_RANK = r"^\[Rank (?P<rank>\d{1,9})\] (?:\(|$)"
"""Prints of Megatron and of DeepSpeed from v0.18.0 on. By far the commonest head without a stamp, and quick to match."""
_ANY_STAMP = r"^.*\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3})\]"
_ANY_RANK = r"^.*(?:\[(?:[Rr]ank|RANK):? (?P<rank>\d{1,9})\]|\brank=(?P<old>\d{1,9}) $)"


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefixes of one file: an expression for the start of its lines; the names of those found; for block parsers.

    fields: expressions for what the file's own logger says of the writer behind its stamp, with the groups field_rank and field_host.
    """

    expression: str
    found: tuple[str, ...]
    fields: tuple[str, ...] = ()

    def writer(self, line: str) -> tuple[tuple[str | None, ...], int]:
        """(whose line it is, as far as its prefix says: rank, local rank, task, host, pod, actor; where its own text begins)."""
        pattern, names = _compiled(self.expression)
        match = pattern.match(line)
        if match is None:
            return (), 0
        who = match.group(*names) if names else ()
        return (who if isinstance(who, tuple) else (who,)), match.end()

    def writers(self, line: str) -> Iterator[tuple[tuple[str | None, ...], str]]:
        """(whose text it is, the text without its prefix) of a line: several where ranks that write at once tore one another's lines."""
        who, begin = self.writer(line)
        if "[rank" in line[begin:]:
            for glued in _GLUED.finditer(line, begin):
                yield who, line[begin : glued.start()]
                who, begin = (glued["rank"], *who[1:]), glued.end()
        yield who, line[begin:]


@functools.cache
def _compiled(expression: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    pattern = re.compile(expression)
    return pattern, tuple(name for name in ("rank", "ranked", "local", "task", "host", "pod", "actor") if name in pattern.groupindex)


def prefix(sample: bytes) -> Prefix:
    """Tell from the first lines of a file which prefixes its lines carry, outermost first."""
    text = re.sub(ANSI, "", sample.decode("utf-8", "replace"))
    margin = _margin([line for line in text.split("\n") if line.strip()])
    lines = [*itertools.islice((line.removeprefix(margin) for line in re.split(r"\r?\n|\r", text) if line.strip()), 2000)]
    parts: list[str] = []
    found: list[str] = []
    if margin:
        parts, found = [f"(?:{margin})?"], ["margin"]
    while lines and len(found) < 6:
        for name, pattern, share in (*_CERTAIN, *_role(lines), *_BY_COUNT):
            if name not in found and _belongs(name, pattern, share, lines):
                break
        else:
            break
        found.append(name)
        parts.append(f"(?:{pattern})?")
        match = _compiled(pattern)[0].match
        lines = [line[m.end() :] if (m := match(line)) else line for line in lines]
    expression = "^" + _COLOURS + _unique("".join(parts)) + f"(?:{_RANK})?"
    return Prefix(
        expression, tuple(found), tuple(expression + field.removeprefix("^") for field in _fields(lines, "" if _TIMED & {*found} else _STAMPED))
    )


_STAMPED = r"^(?:[a-z]+=|\[)?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_RANK_KEY = r"(?i:(?:(?:global|world)[_ ]?)?rank ?[=:] ?)"
_WORD = r"[A-Za-z_][\w.:-]*"
_BETWEEN = rf"(?P<between>(?:[^\n]{{0,100}}?[\s|\[(,])?){_RANK_KEY}\d{{1,7}}(?:[\s|\]),]|$)"
_HOST_FIELD = r"(?:host|hostname|node|nodename) ?[=:] ?(?P<field_host>[A-Za-z0-9][A-Za-z0-9_.-]*)(?:[\s|\]),]|$)"
_TIMED = {"utc", "stamp", "determined"}
"""Prefixes that are a stamp."""
_FIELDED, _FEWEST, _MOST_WORDS = 0.6, 3, 3
"""Share of the lines with a stamp that have the field at the same place, and the number of them, from which on it belongs to the logger's format; words before it."""


def _fields(lines: list[str], stamp: str) -> tuple[str, ...]:
    """Expressions for the rank and the host that a logger puts behind the stamp of its lines, empty where most of these have none.

    `2025-06-02 19:10:00.019 | INFO     | rank=09 host=node-3 | trainer:run:48 - …`, `time=… level=info rank=9 msg=…`; structlog's fields come last.
    What stands between stamp and rank must be the same but for words, so that talk of other ranks is none.
    """
    stamped = [line for line in lines if _compiled(stamp)[0].match(line)]
    found = [(m, _TAIL.search(line)) for line in stamped if (m := _compiled(stamp + _BETWEEN)[0].match(line))]
    many = _FIELDED * len(stamped)
    if len(found) < max(_FEWEST, many):
        return ()
    forms = Counter(_form(m["between"]) for m, _ in found if len(re.findall(_WORD, re.sub(r"=\S+", "", m["between"]))) <= _MOST_WORDS)
    form, count = next(iter(forms.most_common(1)), ("", 0))
    if count >= many:
        rank = rf"{stamp}{form}{_RANK_KEY}(?P<field_rank>\d{{1,7}})(?:[\s|\]),]|$)"
    elif sum(tail is not None for _, tail in found) >= many:
        rank = rf"{stamp}.*[ \t](?:global_)?rank=(?P<field_rank>\d{{1,7}})(?:[ \t]+[\w.]+=\S+)*$"
    else:
        return ()
    hosts = sum(re.search(rf"[\s|\[(,]{_HOST_FIELD}", line) is not None for line in stamped)
    return (rank, rf"{stamp}.*?[\s|\[(,]{_HOST_FIELD}") if hosts >= many else (rank,)


_TAIL = re.compile(r"[ \t](?:global_)?rank=\d{1,7}(?:[ \t]+[\w.]+=\S+)*$")
"""structlog's and logfmt's fields behind the text."""


def _form(between: str) -> str:
    """What stands before a field as an expression: names and levels are any words, blanks any number of them."""
    parts = re.split(rf"({_WORD}|\s+|\d+)", between)
    return "".join(_WORD if re.fullmatch(_WORD, p) else r"\s+" if p.isspace() else r"\d+" if p.isdecimal() else re.escape(p) for p in parts)


def _margin(lines: list[str]) -> str:
    """The blanks that every line begins with: a log copied out of a list or of an indented block. One blank is Megatron's own."""
    if not all(line[0] in " \t" for line in lines):  # so it is of nearly all logs
        return ""
    least = min(lines, key=lambda line: len(line) - len(line.lstrip(" \t")), default="")
    blanks = least[: len(least) - len(least.lstrip(" \t"))]
    if not all(line.startswith(blanks) for line in lines):
        return ""
    return blanks if len(lines) >= 3 and (len(blanks) > 1 or blanks == "\t") else ""


def _role(lines: list[str]) -> list[tuple[str, str, float]]:
    """Torchrun's prefix with the role names of this file; `[rank3]:` is torch's own and names the global rank."""
    names = Counter(m.group(1) for m in map(_ROLE.match, lines) if m)
    roles = [re.escape(name) for name, count in names.items() if name.lower() != "rank" and count >= max(2, 0.02 * len(lines))]
    return [("role", rf"\[(?:{'|'.join(roles)})(?P<local>\d+)\]:", 0.05)] if roles else []


def _unique(expression: str) -> str:
    """A group name may be used once: later ones of the same name become plain groups."""
    seen: set[str] = set()

    def keep(match: re.Match[str]) -> str:
        name = match.group(1)
        first = name not in seen
        seen.add(name)
        return match.group(0) if first else "(?:"

    return re.sub(r"\(\?P<(\w+)>", keep, expression)


def _belongs(name: str, pattern: str, share: float, lines: list[str]) -> bool:
    match = _compiled(pattern)[0].match
    matches = [m for m in map(match, lines) if m]
    if len(matches) < max(2, share * len(lines)):
        return False
    if name == "ranked":
        return sum(_NO_PREFIX.match(m.string) is None for m in matches) >= share * len(lines)
    if name == "stern":
        pods = Counter(m.group() for m in matches)
        return len(pods) <= max(4, len(lines) // 8) and all(count >= 3 for count in pods.values())
    if name == "host":
        hosts = Counter(m["host"] for m in matches)
        real = {h for h in hosts if not _NOT_HOSTS.match(h)}
        often = sum(hosts[h] for h in real if hosts[h] >= 3)
        return len(real) <= max(4, len(lines) // 8) and often >= share * len(lines)
    if name == "compose":  # loguru's level stands like a container's name
        return sum(not _NOT_HOSTS.match(m["host"]) for m in matches) >= share * len(lines)
    if name in ("label", "rank0"):  # "12: EmbeddingPipe" lists and numbered output are no labels
        return len({m["task"] for m in matches}) <= max(2, len(matches) // 2)
    return True


def clean(texts: pa.Array, *, odd: bool = True) -> pa.Array:
    """Valid UTF-8 strings without colours and NUL of an array of bytes. odd: there may be some; looking costs more than the rest."""
    try:
        out = texts.cast(pa.string())
    except pa.ArrowInvalid:
        out = pa.array([t.decode("utf-8", "replace") for t in texts.to_pylist()], pa.string())
    if odd and len(out):
        if pc.any(pc.match_substring(out, "\x1b")).as_py():
            out = pc.replace_substring_regex(out, ANSI, "")
        if pc.any(pc.match_substring(out, "\0")).as_py():
            out = pc.replace_substring(out, "\0", "")
    return out


def clean_line(raw: bytes) -> str:
    """One line as `clean` would give it; what a progress bar wrote over is left out."""
    raw = raw.rstrip(b"\r")
    text = raw[raw.rfind(b"\r") + 1 :].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI_RE.sub("", text)
    return text.replace("\0", "")


_BAR = r"^.*\d{1,3}%\|[^|]{0,200}\| \S{1,40} \[[^\]]{0,80}\]"


def without_bar(text: str) -> str:
    """A head without the progress bar that it is glued to: what follows on the bar's line is another's."""
    return re.sub(_BAR, "", text) if "%|" in text else text


def without_bars(texts: pa.Array) -> pa.Array:
    """Heads without progress bars."""
    return pc.replace_substring_regex(texts, _BAR, "") if pc.any(pc.match_substring(texts, "%|")).as_py() else texts


def untorn(text: str) -> str:
    """*text* up to where another rank's begins."""
    return text[: glued.start()] if "[rank" in text and (glued := _GLUED.search(text)) else text


def without(lines: pa.Array, of_line: Prefix) -> pa.Array:
    """*lines* without the launcher's prefix."""
    return pc.replace_substring_regex(lines, of_line.expression, "")


def yearless(columns: dict[str, pa.Array], lines: pa.Array, of_line: Prefix) -> dict[str, pa.Array]:
    """start_ns and clock of whole lines, filled in from a prefix that prints no year: for errors alone, which are put into the year of the others."""
    if "(?P<yearless>" not in of_line.expression:
        return {}
    ns = syslog_ns(_filled(pc.extract_regex(lines, of_line.expression).field("yearless")))
    clock = pc.if_else(pc.and_(pc.is_null(columns["start_ns"]), pc.is_valid(ns)), YEARLESS, columns["clock"])
    return {"start_ns": pc.coalesce(columns["start_ns"], ns), "clock": clock}


def parse(heads: pa.Array, begin: pa.Array | None, of_line: Prefix, *, tagged: bool = True) -> dict[str, pa.Array]:
    """rank, host, label, clock and start_ns of each record, from its head.

    heads: clean text before each record, back to the start of its line or to the mark before it. begin: for each record the
    beginning of its line, which holds the launcher's prefix; null where there is none. tagged: `[rank3]:` may stand somewhere.
    """
    n = len(heads)
    logger = pc.extract_regex(heads, _LOGGER)
    stamp, rank = _filled(logger.field("stamp")), _filled(logger.field("rank")).cast(pa.int32())
    left = pc.fill_null(pc.match_substring_regex(pc.if_else(pc.is_null(logger), heads, None), r"\[|rank=\d+ $"), False)
    if pc.any(left).as_py():
        plain = _filled(pc.extract_regex(pc.if_else(left, heads, None), _PLAIN_RANK).field("rank")).cast(pa.int32())
        rank, left = pc.coalesce(rank, plain), pc.and_(left, pc.is_null(plain))
    if pc.any(left).as_py():
        rest = pc.if_else(left, heads, None)
        dated = pc.if_else(pc.match_substring(rest, "[20"), rest, None)
        stamp = pc.coalesce(stamp, _filled(pc.extract_regex(dated, _ANY_STAMP).field("stamp")))
        ranks = pc.extract_regex(rest, _ANY_RANK)
        rank = pc.coalesce(rank, *(_filled(ranks.field(name)).cast(pa.int32()) for name in ("rank", "old")))
    rank = pc.if_else(pc.less(rank, 0), None, rank)
    columns = {"rank": rank, "start_ns": _stamp_ns(stamp), "host": pa.nulls(n, pa.string()), "label": pa.nulls(n, pa.string())}
    columns["clock"] = pc.if_else(pc.is_valid(columns["start_ns"]), "log", pa.scalar(None, pa.string()))
    if begin is not None:
        _launcher(columns, begin, of_line)
        _logger(columns, begin, of_line)
    torn = pc.match_substring_regex(heads, _BEHIND) if tagged else None
    if torn is not None and pc.any(torn).as_py():
        glued = _filled(pc.extract_regex(pc.if_else(torn, heads, None), _BEHIND).field("rank")).cast(pa.int32())
        columns["rank"] = pc.coalesce(glued, columns["rank"])
    return columns


def _launcher(columns: dict[str, pa.Array], heads: pa.Array, of_line: Prefix) -> None:
    """Fill in what the launcher's prefix says. Its times are in UTC and on every line, so they take precedence."""
    found = pc.extract_regex(heads, of_line.expression)
    has = {found.type.field(i).name for i in range(found.type.num_fields)}

    def group(name: str) -> pa.Array:
        return _filled(found.field(name))

    for name in ("ranked", "rank"):
        columns["rank"] = pc.coalesce(_number(group(name), pa.int32()), columns["rank"]) if name in has else columns["rank"]
    for name in ("host", "pod"):
        if name in has:
            columns["host"] = pc.coalesce(columns["host"], group(name))
    for name, word in (("local", "local "), ("task", "task "), ("pid", "pid ")):
        if name in has:
            label = pc.binary_join_element_wise(pa.scalar(word), group(name), "")
            columns["label"] = pc.coalesce(columns["label"], label)
    if "local_time" in has:
        local = _stamp_ns(pc.replace_substring(group("local_time"), "T", " "))
        columns["clock"] = pc.if_else(pc.and_(pc.is_null(columns["start_ns"]), pc.is_valid(local)), "log", columns["clock"])
        columns["start_ns"] = pc.coalesce(columns["start_ns"], local)
    if "utc" in has:
        utc = _stamp_ns(pc.replace_substring(group("utc"), "T", " "))
        utc = pc.subtract(utc, _offset_ns(group("offset"))) if "offset" in has else utc
        columns["start_ns"] = pc.coalesce(utc, columns["start_ns"])
        columns["clock"] = pc.if_else(pc.is_valid(utc), "utc", columns["clock"])


def _logger(columns: dict[str, pa.Array], heads: pa.Array, of_line: Prefix) -> None:
    """Fill in the rank and the host that the logger of the file prints with every line."""
    for name, expression in zip(("rank", "host"), of_line.fields, strict=False):
        said = _filled(pc.extract_regex(heads, expression).field(f"field_{name}"))
        columns[name] = pc.coalesce(columns[name], _number(said, pa.int32()) if name == "rank" else said)


def _offset_ns(offsets: pa.Array) -> pa.Array:
    """`+02:00` in ns; 0 where there is none."""
    words = {w: (1 if w[0] == "+" else -1) * (int(w[1:3]) * 60 + int(w[-2:])) * 60 * 10**9 for w in pc.unique(offsets).to_pylist() if w}
    if not words:
        return pa.repeat(pa.scalar(0, pa.int64()), len(offsets))
    values = pa.array(list(words.values()), pa.int64()).take(pc.index_in(offsets, pa.array(list(words), pa.string())))
    return pc.fill_null(values, 0)


def _filled(group: pa.Array) -> pa.Array:
    """A group as strings, null where it took no part or the expression did not match."""
    return pc.if_else(pc.equal(group, ""), pa.scalar(None, pa.string()), group)


def _number(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    text = pc.if_else(pc.match_substring_regex(column, r"^-?\d{1,9}$"), column, pa.scalar(None, pa.string()))
    return pc.cast(text, dtype)


def _stamp_ns(stamps: pa.Array) -> pa.Array:
    """Nanoseconds since the epoch of 'YYYY-mm-dd HH:MM:SS,mmm', taken as UTC; null where it is no date."""
    text = pc.replace_substring(stamps, ",", ".")
    try:
        return pc.cast(pc.cast(text, pa.timestamp("ns")), pa.int64())
    except pa.ArrowInvalid:  # 2024-13-45, or more than nine digits: rare, so one by one
        values = [_one_stamp(t) for t in pc.replace_substring_regex(text, r"(\.\d{9})\d+$", r"\1").to_pylist()]
        return pa.array(values, pa.int64())


def _one_stamp(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        value = pc.cast(pc.cast(pa.scalar(text), pa.timestamp("ns")), pa.int64()).as_py()
    except pa.ArrowInvalid:
        return None
    return int(value)
