"""Event tables of files already read (and reports, see `pipelog.kept`), under $XDG_CACHE_HOME/pipelog; keyed by path, size, time of change, the
code of pipelog and its plug-ins.

Only the command line uses it. A cache that cannot be written or read costs nothing but time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pyarrow as pa

from pipelog._version import __version__
from pipelog.errors import BadReport
from pipelog.events import Events
from pipelog.reading.files import Source

_SMALLEST = 1 << 20
_LARGEST_TOTAL = 4 << 30


def folder() -> Path:
    """Where the cache lies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipelog"


def place(source: Source) -> Path | None:
    """The file of *source* in the cache; None for small files, which are read again as fast."""
    if source.bytes < _SMALLEST:
        return None
    key = f"{source.path.resolve()}\0{source.shown}\0{source.bytes}\0{source.modified_ns}\0{code()}"
    return folder() / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.parquet"


@functools.cache
def code() -> str:
    """Version, and when each module was changed: what an earlier state of a clone has read counts no more."""
    modules = sorted(Path(__file__).parents[1].rglob("*.py"))
    return repr((__version__, [(m.name, m.stat().st_mtime_ns) for m in modules], _plugins()))


def _plugins() -> list[tuple[str, str | None, int | None]]:
    """What other distributions offer: module, version, and when it was changed."""
    found = []
    for plugin in (p for group in entry_points().groups if group.startswith("pipelog.") for p in entry_points(group=group)):
        changed = None
        with contextlib.suppress(ImportError, OSError, ValueError):  # what cannot be found is said when it is loaded
            spec = importlib.util.find_spec(plugin.module)
            changed = Path(spec.origin).stat().st_mtime_ns if spec and spec.origin else None
        found.append((plugin.value, plugin.dist.version if plugin.dist else None, changed))
    return sorted(found, key=repr)


def load(path: Path) -> Events | None:
    """What was kept, None where there is nothing whole."""
    try:
        if path.exists():
            os.utime(path)
            return Events.read(path)
    except (OSError, BadReport, pa.ArrowException):
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def text(path: Path) -> str | None:
    """The text that was kept, None where there is none."""
    try:
        if path.exists():
            os.utime(path)
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return None
    return None


def keep(path: Path, events: Events) -> None:
    """Keep the events of a file."""
    _keep(path, events.write)


def keep_text(path: Path, content: str) -> None:
    """Keep a text."""
    _keep(path, lambda part: part.write_text(content, encoding="utf-8"))


def _keep(path: Path, write: Callable[[Path], object]) -> None:
    """Write whole or not at all; then let the oldest go where the cache has grown too large."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            name = Path(part.name)
        try:
            write(name)
            name.replace(path)
        finally:
            name.unlink(missing_ok=True)
        _trim(path.parent)
    except OSError:
        return


def _trim(directory: Path) -> None:
    files = sorted(((f.stat().st_mtime, f.stat().st_size, f) for f in directory.iterdir() if f.suffix in (".parquet", ".json")), reverse=True)
    total = 0
    for _, size, file in files:
        total += size
        if total > _LARGEST_TOTAL:
            file.unlink(missing_ok=True)
