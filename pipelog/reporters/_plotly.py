"""The browser's part of plotly, as it travels in a report: gzipped, in base64, with the hash that the page's policy allows."""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Library:
    """packed: base64 of the gzip. hash: of the inflated text, as a source of script-src."""

    packed: str
    hash: str


@cache
def library() -> Library:
    """plotly.min.js of the installed package. The package itself is not imported, which takes long and is not needed."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("plotly is not installed: pip install plotly")
    script = (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()
    return Library(base64.b64encode(gzip.compress(script, 6, mtime=0)).decode("ascii"), source(script))


def source(script: bytes) -> str:
    """The source expression for script-src that allows exactly this script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode('ascii')}'"
