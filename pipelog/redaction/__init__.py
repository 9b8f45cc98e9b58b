"""Redaction of the report, before any reporter sees it: secrets always, names on demand.

`without_secrets` takes out what opens a door (tokens, keys, passwords). `redacted` also replaces what tells whose job it is: hosts,
users, paths, addresses, each by a name of its own (node-1, user-1, path-1 …), the same for the same thing all over the report.
Both work on every text of the report, so that no output can forget one, and say in `Report.redaction` and in a note what they did.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from pipelog._text import count
from pipelog.events import Events
from pipelog.redaction import secrets
from pipelog.redaction.places import TOKEN, hosts_told, identifies, names_kept, split_path, users_told
from pipelog.report import Report

_KINDS = {"host": "node", "user": "user", "path": "path", "ip": "ip", "email": "email", "url": "url", "encoded": "encoded"}
"""Kind of name → how its replacement begins."""
_SHAPED = {"ip6": "ip", "aws": "host", "fqdn": "host"}
_OWN_WORDS = frozenset(
    ("id", "kind", "status", "severity", "confidence", "fingerprint", "schema", "basis", "scope", "category", "instruction", "verdict", "role", "of", "part")
)  # fmt: skip
"""Fields whose words are pipelog's own, never a log's."""
_OF_PIPELOG = _OWN_WORDS | {"advice", "missing", "title", "what", "setting"}
"""Fields whose sentences are pipelog's own: they repeat names of a log, but where a host stands in them (`nc -vz MASTER_ADDR`) need not be one."""
_PLURAL = {
    "host": ("host", "hosts"),
    "user": ("user", "users"),
    "path": ("path", "paths"),
    "ip": ("IP address", "IP addresses"),
    "email": ("e-mail address", "e-mail addresses"),
    "url": ("URL", "URLs"),
    "encoded": ("encoded list", "encoded lists"),
}
_NOTE = "Redacted: "


def without_secrets(report: Report) -> Report:
    """The report without tokens, keys and passwords, in place; how many places is in `redaction`."""
    taken = 0
    known: dict[str, tuple[str, int]] = {}  # series of charts repeat their words thousands of times

    def clean(text: str) -> str:
        nonlocal taken
        if text not in known:
            known[text] = secrets.removed(text)
        taken += known[text][1]
        return known[text][0]

    _change(report, clean)
    if taken:
        report.redaction = {**(report.redaction or {}), "secrets": (report.redaction or {}).get("secrets", 0) + taken}
        _tell(report)
    return report


def redacted(report: Report, events: Events | None = None) -> Report:
    """The report without secrets and without names of hosts, users, paths and addresses, in place; a redacted one stays as it is.

    events: where more hosts and users are known from than the report's own lines tell. The pandas tables, which hold names too, go.
    """
    if (report.redaction or {}).get("names") is not None:
        return report
    without_secrets(report)
    names = names_of(report, events)
    _change(report, names.replaced)
    report.tables = {}
    report.redaction = {"secrets": (report.redaction or {}).get("secrets", 0), "names": names.counts()}
    _tell(report)
    return report


def names_of(report: Report, events: Events | None = None, also: Iterable[str] = ()) -> Names:
    """What stands for the names of a report that is not redacted. also: texts that an output holds besides the report, which may tell users."""
    cited = _texts({k: v for k, v in report.to_dict().items() if k in ("findings", "failure", "inputs", "run")}, but=_OF_PIPELOG)
    told = [*cited, *also, *(_words(events, "text") if events is not None else [])]
    machines = [r.get("host") for r in report.topology.get("ranks", [])]
    machines += [i["notes"]["host"] for i in report.inputs if i.get("notes", {}).get("host")]
    machines += sorted(_words(events, "host")) if events is not None else []
    hosts = names_kept([*machines, *(name for text in told for name in hosts_told(text))])
    users = names_kept(name for text in told for name in users_told(text))
    return Names(hosts, [u for u in users if u not in hosts], _texts(report.to_dict()))


def _words(events: Events, column: str) -> list[str]:
    """Different words of a column of the event table."""
    values = pa.compute.unique(events.table.column(column).cast(pa.large_string())).to_pylist()
    return [v for v in values if v]


class Names:
    """Original → replacement for one report. texts: all of it, so that no replacement is a name that somebody bears."""

    def __init__(self, hosts: list[str], users: list[str], texts: Iterable[str] = ()) -> None:
        begins = "|".join(_KINDS.values())
        self._taken = {found for text in texts for found in re.findall(rf"(?:{begins})-\d+", text)} | {*hosts, *users}
        self._given: dict[tuple[str, str], str] = {}
        self._next: Counter[str] = Counter()
        self._places: Counter[str] = Counter()
        self._kind: dict[str, tuple[str, str]] = {}
        for host in hosts:  # a host goes by its first label, too
            short = names_kept([host.partition(".")[0]])
            self._kind[host.lower()] = ("host", short[0].lower() if short else host.lower())
            for name in short:
                self._kind.setdefault(name.lower(), ("host", name.lower()))
        for user in users:
            self._kind.setdefault(user.lower(), ("user", user.lower()))
        longest = sorted(self._kind, key=lambda name: (-len(name), name))
        self._known = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest))})(?![A-Za-z0-9])", re.IGNORECASE) if longest else None
        for host in hosts:
            self._name(*self._kind[host.lower()])

    def replaced(self, text: str) -> str:
        """*text* with every name replaced."""
        if len(text) > 200 and text.endswith("…"):  # a cut line may end within a name
            text = re.sub(r"[^\s]{1,200}…$", "…", text)
        out, done = [], 0
        for match in TOKEN.finditer(text):
            kind = str(match.lastgroup)
            if identifies(kind, match[0], text[max(0, match.start() - 16) : match.start()]):
                out += [self._of_names(text[done : match.start()]), self._shaped(_SHAPED.get(kind, kind), match[0])]
                done = match.end()
        return "".join([*out, self._of_names(text[done:])])

    def counts(self) -> dict[str, dict[str, int]]:
        """Kind → how many different ones were replaced, and in how many places."""
        different = Counter(kind for kind, name in self._given if self._places[self._given[kind, name]])
        places: Counter[str] = Counter()
        for (kind, _), given in self._given.items():
            places[kind] += self._places[given]
        return {kind: {"different": different[kind], "places": places[kind]} for kind in _KINDS if different[kind]}

    def _of_names(self, text: str) -> str:
        return self._known.sub(lambda m: self._put(*self._kind[m[0].lower()]), text) if self._known else text

    def _shaped(self, kind: str, word: str) -> str:
        if kind == "path":
            folder, rest = split_path(word)
            return self._put(kind, folder) + self._of_names(rest)
        if kind == "host":
            known = self._kind.get(word.lower()) or self._kind.get(word.partition(".")[0].lower())
            return self._put(*known) if known else self._put(kind, word.lower())
        tail = word[len(word.rstrip(".,;:")) :] if kind == "url" else ""
        return self._put(kind, word.removesuffix(tail)) + tail

    def _put(self, kind: str, name: str) -> str:
        given = self._name(kind, name)
        self._places[given] += 1
        return given

    def _name(self, kind: str, name: str) -> str:
        while (kind, name) not in self._given:
            self._next[kind] += 1
            new = f"{_KINDS[kind]}-{self._next[kind]}"
            if new not in self._taken:
                self._given[kind, name] = new
        return self._given[kind, name]


def _change(report: Report, change: Callable[[str], str]) -> None:
    """Apply *change* to every text of the report."""
    for field in fields(report):
        if field.name not in ("pipelog_version", "tables", "redaction"):
            setattr(report, field.name, _changed(getattr(report, field.name), change))


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {k: v if k in _OWN_WORDS and isinstance(v, str) else _changed(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_changed(v, change) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        kept = ("id", "name", "role", "options")  # of a rule or a finding
        return replace(value, **{f.name: _changed(getattr(value, f.name), change) for f in fields(value) if f.name not in kept})
    return value


def _texts(value: Any, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """Every text of a part of the report; but: fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if key not in but:
                yield from _texts(part, but)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part, but)


def _tell(report: Report) -> None:
    """One note that says what was redacted, last of all notes."""
    done = report.redaction or {}
    parts = [f"{n['different']} {_PLURAL[kind][n['different'] != 1]}" for kind, n in (done.get("names") or {}).items()]
    words = f"{', '.join(parts) or 'no host, user, path or address'} replaced" if done.get("names") is not None else ""
    gone = f"{count(done['secrets'], 'secret')} removed" if done.get("secrets") else ""
    report.notes = [n for n in report.notes if not n.startswith(_NOTE)] + [f"{_NOTE}{'; '.join(p for p in (words, gone) if p)}."]
