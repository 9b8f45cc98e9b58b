"""What tells whose job it is, as patterns: hosts, users, paths, addresses in texts of logs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator

from pipelog.redaction.secrets import encoded_json

_COMMON = """
    localhost localdomain local root user users admin nobody ubuntu ray centos ec2-user runner slurm mpi ssh pdsh git kernel all any none null true false unknown
    node nodes host hosts worker workers master head login compute gpu gpus cpu rank ranks stage stages step steps train training trainer test tests data
    model models log logs run runs job jobs home work scratch tmp trace traces config pipeline pipe forward backward send recv micro batch bubble replica
    link links memory time loss scale error warning info failed hung completed cancelled launch network storage hardware engine code python torch deepspeed
    megatron nccl cuda file line main app src lib bin the and was not with for from this that exit code signal process number name what why
"""
COMMON = frozenset(_COMMON.split())
"""Words that identify nobody: a host or user of that name is left as it is, since the word stands in every report."""

_HOST = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
_HOSTS = (
    r"connect to host (HOST)", r"resolve hostname (HOST)", r"(?i:\bmaster_?addr)[=: ]+['\"]?(HOST)", r"(?:\bSLURMD_NODENAME|\bHOSTNAME)=(HOST)",
    r"\*\*\* (?:JOB|STEP) \S+ ON (HOST)", r"srun: error: (HOST): tasks?\b", r"pdsh@(HOST):", r"nfs: server (HOST) ",
    r"^(?:\[\w+\])?(HOST):\d+:\d+ \[\d+\] (?:NCCL|misc|transport|bootstrap)", r"^\[(HOST):\d+\]",
    r"^\w{3} +\d+ [\d:]{8} (HOST) [\w./-]+(?:\[\d+\])?:", r"^\s*host\s*: (HOST)$", r"(?<![\w.+-])[A-Za-z_][\w.-]{2,}@(HOST)",
)  # fmt: skip
_PERHAPS = (
    r"^\d{4}-\d\d-\d\dT\S+ (HOST) [\w./-]+(?:\[\d+\])?:", r"\b[Nn]ode[/ ](HOST) (?:is not ready|status is|has |was )", r"(?<![\w.-])node/(HOST)\b",
    r"\bon host:? ['\"]?(HOST)", r"(?i:\bhostname)[=: ]+['\"]?(HOST)", r"\bssh (?:-\S+ (?:\w+=\S+ )?)*(?:[\w.-]+@)?(HOST) ",
)  # fmt: skip
"""Places where words of a sentence may stand, too: there a host's name has a digit."""
_TELLS_HOST, _TELLS_PERHAPS = ([re.compile(p.replace("(HOST)", f"({_HOST})"), re.MULTILINE) for p in some] for some in (_HOSTS, _PERHAPS))
_TELLS_USER = [
    re.compile(p)
    for p in (
        r"(?:/(?:home|homes|Users|users)|[A-Z]:\\Users)[/\\]([A-Za-z_][\w.-]*)",
        r"\b(?:USER|USERNAME|LOGNAME|SUDO_USER|SLURM_JOB_USER|PBS_O_LOGNAME)[=:]\s*['\"]?([A-Za-z_][\w.-]*)",
        r"\b(?:uid|UserId)=(?:\d+\()?([A-Za-z_][\w.-]*)",
        r"\b[Uu]ser <([A-Za-z_][\w.-]*)>",
        r"~([A-Za-z_][\w-]*)/",
        rf"(?<![\w.+-])([A-Za-z_][\w.-]{{2,}})@(?=[\w.-]*[A-Za-z.]){_HOST}",
    )
]
_FQDN = (
    r"(?<![\w./@-])(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,8}"
    r"(?:(?:com|net|org|edu|gov|mil|local|localdomain|lan|internal|intra|corp|cluster|svc|cloud|hpc|arpa)"
    r"|(?<=\.)(?<=[\w-]\.)(?:de|fr|uk|us|ch|nl|jp|kr|cn|ca|au|eu|fi|se|dk|cz|es|br|tw|sg))(?![\w-])(?!\.\w)"
)
_PUBLIC = re.compile(
    r"(?:https?://)?(?:[\w-]+\.)?(?:pytorch\.org|deepspeed\.ai|nvidia\.com|python\.org|kernel\.org|schedmd\.com|kubernetes\.io|amd\.com|open-mpi\.org)(?:[/:?#]\S*)?"
)
_SYSTEM = re.compile(r"/(?:usr|lib|lib64|bin|sbin|etc|proc|sys|dev|opt/conda|opt/rocm|run|boot|__w)(?:/|$)")
_PACKAGES = re.compile(r"/(?:site-packages|dist-packages|lib/python3?(?:\.\d+)?)/")
_KEPT_NAME = re.compile(r"[\w.+-]{1,100}\.[A-Za-z]\w{0,9}|global_step\d+|iter_\d+|checkpoint-\d+|rank_?\d+")

TOKEN = re.compile(
    rf"""(?P<url>\b[a-z][a-z0-9+.-]{{1,20}}://(?:\[secret\ removed\]@)?[^\s'"<>\])]+)
    | (?P<email>(?<![\w.+-])[A-Za-z0-9_][\w.+-]{{0,64}}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{{2,24}}(?![\w-]))
    | (?P<path>(?<![\w.)%\]}}/\\])/[\w~.+@=-]+(?:/[\w~.+@=,#-]+)+/? | \b[A-Z]:\\[\w.-]+(?:\\[\w.-]+)+)
    | (?P<ip>(?<![\w.])(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?!\.?\d|[A-Za-z_]))
    | (?P<ip6>(?<![\w:.])[0-9A-Fa-f:]*::?[0-9A-Fa-f:]+(?:%\w+)?(?![\w:.]))
    | (?P<aws>\bip-\d{{1,3}}(?:-\d{{1,3}}){{3}}\b(?:\.[a-z0-9-]+)*)
    | (?P<fqdn>{_FQDN})
    | (?P<encoded>(?<![\w+/-])[A-Za-z0-9_-]{{16,}}={{0,2}}(?![\w+/-]))""",
    re.VERBOSE,
)
"""What is told by its shape; names of hosts and users are known from elsewhere."""
_VERSION = re.compile(r"(?i)(?:version|release|driver|cuda|nccl|cudnn|rocm|firmware|[=~<>]=|\bv)[\s:=v'\"(/]*$")


def hosts_told(text: str) -> Iterator[str]:
    """Names of hosts that stand in a text where hosts stand."""
    for pattern in _TELLS_HOST:
        yield from (found for found in pattern.findall(text) if "_" not in found)  # MASTER_PORT is none
    for pattern in _TELLS_PERHAPS:
        yield from (found for found in pattern.findall(text) if "_" not in found and any(c.isdigit() for c in found))


def users_told(text: str) -> Iterator[str]:
    """Names of users: of home folders, variables, `user@host`."""
    for pattern in _TELLS_USER:
        yield from pattern.findall(text)


def names_kept(names: Iterable[str | None]) -> list[str]:
    """Those that identify somebody: longer than a letter, no number, no common word, no address (which is told by its shape); each once, in order."""
    good = (n for n in names if n and len(n) > 1 and any(c.isalpha() for c in n) and n.lower() not in COMMON)
    return [n for n in dict.fromkeys(good) if not is_address(n)]


def is_address(word: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(word.partition("%")[0])
    except ValueError:
        return False
    return True


def identifies(kind: str, word: str, before: str) -> bool:
    """Whether a word of such a shape says whose job it is: no loopback, no version, no page of a public manual, no folder of every system."""
    if kind in ("ip", "ip6"):
        return _is_machine(kind, word) and not _VERSION.search(before)
    if kind in ("url", "fqdn"):
        return not _PUBLIC.fullmatch(word)
    if kind == "path":
        return not _SYSTEM.match(word)
    return encoded_json(word) if kind == "encoded" else True


def _is_machine(kind: str, word: str) -> bool:
    if not is_address(word):
        return False
    address = ipaddress.ip_address(word.partition("%")[0])
    plain = kind == "ip" or sum(1 for part in word.split(":") if part) >= 3
    return plain and not address.is_loopback and not address.is_unspecified and word != "255.255.255.255"


def split_path(path: str) -> tuple[str, str]:
    """A path in what is private, the folder, and what is not: what lies in a package, or the name of a file."""
    inside = _PACKAGES.search(path)
    if inside:
        return path[: inside.start()], path[inside.start() :]
    sign = "\\" if "\\" in path else "/"
    folder, _, name = path.rstrip(sign).rpartition(sign)
    return (folder, sign + name) if _KEPT_NAME.fullmatch(name) and folder else (path.rstrip(sign), "")
