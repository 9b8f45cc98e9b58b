"""What opens a door: tokens, keys and passwords in a text. They leave no report, asked or not."""

from __future__ import annotations

import base64
import binascii
import json
import re

REMOVED = "[secret removed]"

_SHAPES = re.compile(
    r"""-----BEGIN[ ][A-Z ]{0,40}PRIVATE[ ]KEY-----.*
    | \bssh-(?:rsa|dss|ed25519)\s+AAAA[A-Za-z0-9+/=]+ | \becdsa-sha2-\S+\s+AAAA[A-Za-z0-9+/=]+
    | (?<![A-Za-z0-9])(?:
        hf_[A-Za-z0-9]{16,} | (?:AKIA|ASIA)[0-9A-Z]{12,} | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{16,} | glpat-[\w-]{16,}
        | sk-(?=[\w-]*\d)[\w-]{20,} | xox[abeprs]-[\w-]{10,} | AIza[\w-]{30,} | ya29\.[\w-]{20,} | npm_[A-Za-z0-9]{30,} | pypi-[\w-]{30,}
        | nvapi-[\w-]{20,} | dckr_pat_[\w-]{16,} | wandb_v1_\w{16,} | local-[0-9a-f]{40}
        | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
        | (?:hf|gh[pousr])_[A-Za-z0-9]*(?=…) | (?:AKIA|ASIA)[0-9A-Z]*(?=…) | github_pat_\w*(?=…)
      )
    | (?<=wandb\ login\ )(?:--\S+\s+)*[0-9a-f]{20,}""",
    re.VERBOSE,
)
"""Credentials that are told by their own shape, those that a cut line shows in part, too."""
_IN_URL = re.compile(r"(?<=://)[^\s/@'\"<>]{1,400}@(?=[\w\[])")
_BEARER = re.compile(
    r"(?i)\b(?:(?:proxy-)?authorization\s*[:=]\s*['\"]?(?:(?:bearer|basic|token|digest)\s+)?|bearer\s+(?=\S{12}))(?P<value>[^\s'\"]{6,})"
)
_ASSIGNED = re.compile(
    r"""(?P<word>
      (?<![A-Za-z])(?i:
        api[_-]?key | access[_-]?key(?:[_-]?id)? | secret(?:[_-]?access)?[_-]?key | client[_-]?secret | account[_-]?key | shared[_-]?access[_-]?key
        | private[_-]?key | encryption[_-]?key | signing[_-]?key | wandb[_-]?key | secret | token | passw(?:or)?d | passphrase | credentials?
        | (?:x-amz-)?signature | x-amz-credential | sig
      )
      | (?<=[a-z])(?:Token|Secret|Password|ApiKey|AccessKey|SecretKey)
    )
    (?P<mid>["']?(?:\s*[:=]\s*|\s+))
    (?P<value>"(?:[^"\\]|\\.)*"? | '(?:[^'\\]|\\.)*'? | [^\s,;&"')}\]]+)
    (?P<after>\s+→\s+\S+)?""",
    re.VERBOSE,
)
_NOTHING = re.compile(r"(?i)(?:none|null|nil|true|false|yes|no|unset|empty|redacted|[*x•.…_-]*|\$\{?\w+.*|<[^>]*>?|%\w+%?|\[secret.*|[=:>-].*)")
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?", re.IGNORECASE)
_OF_THE_MODEL = re.compile(r"(?i)(?:pad|mask|cls|sep|bos|eos|eod|unk|special|image|per|next|last|each|unexpected|invalid)[_ -]$")
_LONG = re.compile(r"(?<![\w+/.-])[A-Za-z0-9+/]{60,}={0,2}(?![\w+/.])")


def removed(text: str) -> tuple[str, int]:
    """*text* without secrets, and how many places were taken out."""
    count = 0

    def gone(_: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return REMOVED

    def assigned(match: re.Match[str]) -> str:
        nonlocal count
        if not _is_secret(match, text):
            return match[0]
        count += 1
        value = match["value"]
        quote = value[0] if value[0] in "\"'" else ""
        return f"{match['word']}{match['mid']}{quote}{REMOVED}{quote}{' → ' + REMOVED if match['after'] else ''}"

    def bearer(match: re.Match[str]) -> str:
        nonlocal count
        if REMOVED.startswith(match["value"]):
            return match[0]
        count += 1
        return match[0].removesuffix(match["value"]) + REMOVED

    text = _SHAPES.sub(gone, text)
    text = _IN_URL.sub(lambda m: m[0] if m[0].startswith("[") else gone(m) + "@", text)
    text = _BEARER.sub(bearer, text)
    text = _LONG.sub(lambda m: gone(m) if _is_key(m[0]) else m[0], text)
    return _ASSIGNED.sub(assigned, text), count


def _is_secret(match: re.Match[str], text: str) -> bool:
    """Whether what is assigned opens a door: not `api_key=None`, not `pad_token: <pad>`, not the tokens that a model counts."""
    word, mid, value = match["word"], match["mid"], match["value"].strip("\"'")
    before = text[max(0, match.start() - 40) : match.start()]
    if _NOTHING.fullmatch(value):
        return False
    if not mid.strip(" \t\"'") and not re.search(r"--[\w.-]*$", before):  # a blank assigns only to an option
        return False
    if "passw" in word.lower() or word.lower() == "passphrase":
        return True
    if (_NUMBER.fullmatch(value) and not (value.isdigit() and len(value) >= 16)) or _OF_THE_MODEL.search(before):
        return False
    if word.isupper():
        return len(value) >= 4
    if word in ("token", "secret", "credential", "credentials", "signature", "sig") and not re.search(r"[_.-]$", before):
        return len(value) >= 16 and any(c.isdigit() for c in value)
    return len(value) >= 6


def _is_key(word: str) -> bool:
    """Whether a long word may be a line of a private key: letters of both cases and digits; encoded JSON is none."""
    mixed = any(c.isupper() for c in word) and any(c.islower() for c in word) and any(c.isdigit() for c in word)
    return mixed and word.count("/") <= len(word) // 12 and not encoded_json(word)


def encoded_json(word: str) -> bool:
    """Whether a base64 word is JSON, as the list of hosts that DeepSpeed's launcher carries."""
    try:
        json.loads(base64.urlsafe_b64decode(word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4)))
    except (ValueError, binascii.Error):
        return False
    return True
