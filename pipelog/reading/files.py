"""Which files there are: a folder at any depth, single files, several paths. Each file once, links followed, no loop."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipelog.errors import NoInput
from pipelog.events import Input, Skipped

_RANK_IN_NAME = re.compile(r"(?i)(?<![a-z])(?<!node[-_. ])(?<!local[-_. ])(?<!machine[-_. ])(?:global[-_. ]?)?rank[-_\[ ]*(\d+)(?!\d)")
_OF_A_NODE = re.compile(r"(?i)(?<![a-z])(?:node|host|machine)[-_. ]?\d+[-_. ]+rank")
"""`node1_rank3`: the third of the node, or of all; the other files tell."""
_TORCHRUN = re.compile(r"(?:^|/)attempt_\d+/(\d+)/(?:stdout|stderr)\.log$")


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read: where it is, how the report calls it, its size."""

    path: Path
    shown: str
    bytes: int
    modified_ns: int
    named: bool = True  # given itself, not found in a folder


def sources(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Source], list[Input]]:
    """Every regular file at or below *paths*, in order of name, and those that could not be looked at, with the reason.

    Raises NoInput where none of the paths exists. A file reached twice (links, overlapping paths) is read once.
    """
    roots = [Path(p) for p in paths]
    missing = [str(r) for r in roots if not os.path.lexists(r)]
    if len(missing) == len(roots):
        raise NoInput(f"no such file or folder: {', '.join(missing)}")
    together = _common(roots)
    seen: set[tuple[int, int]] = set()
    found: list[Source] = []
    refused = [Input(m, "ignored", 0, skipped=[Skipped(None, "ignored, because there is no such file or folder")]) for m in missing]
    for root in roots:
        if str(root) in missing:
            continue
        base = together or (root if root.is_dir() else root.parent)
        for path, trouble in _walk(root, seen):
            shown = _shown(path, base)
            if trouble:
                refused.append(Input(shown, "ignored", 0, skipped=[Skipped(None, trouble)]))
                continue
            try:
                info = path.stat()
            except OSError as error:
                refused.append(Input(shown, "ignored", 0, skipped=[Skipped(None, _reason(error))]))
                continue
            if not stat.S_ISREG(info.st_mode):
                refused.append(Input(shown, "ignored", 0, skipped=[Skipped(None, "ignored, because it is no regular file")]))
            elif (info.st_dev, info.st_ino) not in seen:
                seen.add((info.st_dev, info.st_ino))
                found.append(Source(path, shown, info.st_size, info.st_mtime_ns, named=path == root))
    return found, refused


def _common(roots: list[Path]) -> Path | None:
    """The deepest folder that holds all of several roots, so that no two files are shown alike; null for a single one."""
    if len(roots) < 2:
        return None
    absolute = [os.path.abspath(r) for r in roots]  # noqa: PTH100  (links stay what they are called)
    return Path(os.path.commonpath([os.path.dirname(a) for a in absolute]))  # noqa: PTH120


def _walk(root: Path, seen: set[tuple[int, int]]) -> Iterator[tuple[Path, str]]:
    """(file, "") for each file at or below *root*, (place, reason) for what could not be entered."""
    waiting = [root]
    while waiting:
        path = waiting.pop()
        try:
            info = path.stat()
            if not stat.S_ISDIR(info.st_mode):
                yield path, ""
            elif (info.st_dev, info.st_ino) not in seen:
                seen.add((info.st_dev, info.st_ino))
                waiting += [path / name for name in sorted(os.listdir(path), key=_natural, reverse=True)]  # noqa: PTH208
        except OSError as error:
            yield path, _reason(error)


def _natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """rank2 before rank10; rank01 and rank1 stand in the same order however the system lists them."""
    return [(0, int(part), "") if part.isdigit() and len(part) < 19 else (1, 0, part) for part in re.split(r"(\d+)", name)], name


def _shown(path: Path, base: Path) -> str:
    try:
        shown = (path if path.is_relative_to(base) else path.absolute()).relative_to(base)
    except ValueError:
        shown = path
    return PurePosixPath(shown).as_posix().encode("utf-8", "replace").decode()


def _reason(error: OSError) -> str:
    return f"ignored, because it could not be opened: {error.strerror or error}"


def rank_of_name(shown: str) -> int | None:
    """The global rank that the name of a file states (`20240305_rank3.log`, `rank-12.json.gz`), null where it states none."""
    name = PurePosixPath(shown).name
    found = [] if _OF_A_NODE.search(name) else _RANK_IN_NAME.findall(name)
    return int(found[-1]) if found and int(found[-1]) < 10**7 else None


def local_rank_of_name(shown: str) -> int | None:
    """The local rank in torchrun's own folders: `attempt_0/3/stdout.log`."""
    found = _TORCHRUN.search(shown)
    return int(found.group(1)) if found else None
