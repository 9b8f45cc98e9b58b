"""Files that should have been read and were not: missing, without permission, damaged."""

from __future__ import annotations

import re

from pipelog.events import Input
from pipelog.tables import table

NOTE = "Not read: "
"""How the note begins that names them."""
_TROUBLE = re.compile(
    r"ignored, because (?:it could not be (?:opened|read): (?P<reason>.*)|(?P<missing>there is no such file or folder)|(?P<fault>pipelog failed on it.*))"
)
_DAMAGED = re.compile(r"the \w+ data (?:are damaged|end in the middle)|broken JSON|it is damaged")
_MOST = 4


@table("unread", needs=("inputs",))
def unread(inputs: list[Input]) -> str:
    """The note that names them with the reasons, the first few; empty where all could be read. What is no input of pipelog is not missed."""
    found = [f"{given.path} ({why})" for given in inputs if (why := _why(given))]
    more = len(found) - _MOST
    closed = any("permission denied" in words for words in found)
    remedy = " Let their owner make them readable for you (chmod a+r, and a+x for the folders above), and run pipelog again." if closed else ""
    return f"{NOTE}{', '.join(found[:_MOST])}{f' and {more} more' if more > 0 else ''}.{remedy}" if found else ""


def _why(given: Input) -> str:
    for skipped in given.skipped:
        if trouble := _TROUBLE.match(skipped.why):
            return next(words for words in trouble.groups() if words).lower()
        if given.kind not in ("log", "trace") and _DAMAGED.match(skipped.why):  # of these the rule truncated-input speaks
            return skipped.why
    return ""
