"""Redaction: no name and no secret of the input is left in any output, and nothing else changes."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pipelog.reporters
from pipelog.cli import main
from pipelog.comparing.comparison import compare
from pipelog.comparing.outputs import OUTPUTS as COMPARED
from pipelog.diagnosis import diagnose
from pipelog.events import Events
from pipelog.findings import Confidence, Evidence, Finding, Outcome, Severity, Status, Where
from pipelog.redaction import Names, redacted, without_secrets
from pipelog.redaction.places import hosts_told, names_kept
from pipelog.redaction.secrets import REMOVED, removed
from pipelog.registry import load
from pipelog.report import Report
from pipelog.reporters import REPORTERS
from pipelog.schema import text as schema
from tests.conftest import FIXTURES
from tests.once import events_of, report_of

load(pipelog.reporters)

RUNS = sorted(p for folder in ("runs", "cases") for p in (FIXTURES / folder).iterdir() if p.is_dir())


def report(text: str = "", hosts: tuple[str, ...] = (), **more: Any) -> Report:
    """A failed run whose finding cites *text*; its ranks are on *hosts*."""
    where = Where(ranks=tuple(range(len(hosts))), hosts=hosts)
    finding = Finding(
        "PL501", "run-failed", f"rank 0 ({', '.join(hosts)}) died", Severity.ERROR, Confidence.HIGH, where, (Evidence("logs/train.log", 7, text),)
    )
    evidence = {"file": "logs/train.log", "line": 7, "text": text, "context": [{"line": 8, "text": text}]}
    failure = {
        "category": "code", "kind": "python-exception", "cause_known": True, "confidence": "high", "title": "It died", "ranks": [0], "stages": [], "hosts": list(hosts),
        "at": None, "step": 3, "phase": "training", "evidence": [evidence], "consequences": [], "missing": [], "advice": [{"action": f"Look at {text}", "expected": None}],
    }  # fmt: skip
    base = json.loads(diagnosed().to_json())
    ranks = [{"rank": n, "stage": None, "dp": None, "tp": None, "host": h} for n, h in enumerate(hosts)]
    return Report(
        inputs=[{"path": "logs/train.log", "kind": "log", "bytes": 9, "events": 1, "skipped": [], "notes": {}}],
        run={**base["run"], "status": "failed"},
        topology={**base["topology"], "ranks": ranks},
        config=base["config"],
        metrics=base["metrics"],
        outcomes=(Outcome("PL501", "run-failed", Status.FOUND, None, (finding,)),),
        failure=failure,
        **more,
    )


def diagnosed() -> Report:
    """The report of a real run, made once."""
    return report_of(FIXTURES / "runs" / "R08")


def rendered(made: Report, *but: str) -> Iterator[tuple[str, str]]:
    """Every output."""
    for name, reporter in REPORTERS.items():
        if name not in but:
            yield name, reporter.render(made)


def stands_in(word: str, text: str) -> bool:
    """Whether the text holds the word as such."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text, re.IGNORECASE) is not None


# ---- secrets

HEX40 = "0123456789abcdef0123456789abcdef01234567"
SECRETS = [
    ("HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWx python train.py", "hf_AbCdEfGhIjKlMnOpQrStUvWx"),
    (f"export WANDB_API_KEY={HEX40}", HEX40),
    (f"wandb login --relogin {HEX40}", HEX40),
    ("aws_access_key_id = AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
    ("AWS_SECRET_ACCESS_KEY='wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY'", "wJalrXUtnFEMI"),
    ('{"api_key": "s3cr3t-value", "project": "x"}', "s3cr3t-value"),
    ("Namespace(comet_api_key='abcdef123456', steps=20)", "abcdef123456"),
    ("python train.py --api-key abcdef123456 --steps 20", "abcdef123456"),
    ("pip install --index-url https://alice:pass1234@pypi.example.com/simple", "pass1234"),
    ("fatal: could not read from https://ghp_0123456789abcdefghijABCDEFGHIJ0123456@github.com/x/y", "ghp_0123456789"),
    ("DB_PASSWORD=hunter2", "hunter2"),
    ("password: 1234", "1234"),
    ("Authorization: Bearer abcdef.ghijkl-mno", "abcdef.ghijkl-mno"),
    ("id_token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P", "dozjgNryP4J3jVmNHl0w5N"),
    ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0 alice@laptop", "AAAAC3NzaC1lZDI1NTE5AAAAIJ0"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----", "BEGIN OPENSSH PRIVATE KEY"),
    ("b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW", "b3BlbnNzaC1rZXk"),
    ("args.wandb_api_key: abcdef123456 → 654321fedcba", "654321fedcba"),
    ("https://acc.blob.core.windows.net/c?sv=2022&sig=abc%2Bdef123456%3D", "abc%2Bdef123456"),
    ("token cut by the end of a line hf_AbC…", "hf_AbC"),
]
HARMLESS = [
    "iteration 3/1000 | consumed tokens: 3072 | tokens per second: 123997.6",
    "  eod_token ....... 50256",
    "pad_token=<|endoftext|>, unk_token=[UNKNOWN_TOKEN]",
    "--tokenizer-type GPT2BPETokenizer --max-tokens 20000000",
    "moe_token_dispatcher_type ....................... allgather",
    "CometConfig(enabled=False, workspace=None, api_key=None, experiment_name=None)",
    "Command 'ssh -o PasswordAuthentication=no node7 hostname' returned non-zero exit status 255",
    "Permission denied (publickey,password).",
    "HF_TOKEN=$HF_TOKEN python train.py --hub-token ${TOKEN} --log 1",
    "--world_info=eyJub2RlLTAiOiBbMCwgMSwgMiwgM10sICJub2RlLTEiOiBbMCwgMSwgMiwgM119",
    "commit 0123456789abcdef0123456789abcdef01234567",
    "SyntaxError: unexpected token: something_that_is_long",
    'MountVolume.SetUp failed for volume "x" : secret "credentials-of-the-job" not found',
    "ncclInternalError: sha512 checks",
    "c10::Error at /opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:1234",
]


@pytest.mark.parametrize(("line", "secret"), SECRETS, ids=[s[:24] for s, _ in SECRETS])
def test_secrets_are_removed_unasked_from_every_output(line: str, secret: str) -> None:
    made = without_secrets(report(line))
    assert made.redaction == {"secrets": 4}  # finding, evidence, its context, advice
    for name, text in rendered(made, "html"):
        assert secret not in text, name
    assert REMOVED in made.to_json()
    assert "4 secrets removed" in REPORTERS["text"].render(made)
    assert "4 secrets removed" in REPORTERS["md"].render(made)


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_no_secret_stays(line: str) -> None:
    assert removed(line) == (line, 0)
    assert without_secrets(report(line)).redaction is None


@pytest.mark.parametrize("line", [s for s, _ in SECRETS])
def test_removing_twice_is_removing_once(line: str) -> None:
    once, _ = removed(line)
    assert removed(once) == (once, 0)


# ---- names


LINES = {
    'File "/home/alice/proj/train.py", line 109, in main': 'File "path-1/train.py", line 109, in main',
    "/home/alice/venv/lib/python3.11/site-packages/deepspeed/runtime/pipe/engine.py:55": "path-1/lib/python3.11/site-packages/deepspeed/runtime/pipe/engine.py:55",
    "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py": "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py",
    "No space left on device: '/lustre/p42/alice/global_step100'": "No space left on device: 'path-1/global_step100'",
    "write /dev/shm/torch_1 failed": "write /dev/shm/torch_1 failed",
    "connect to 10.1.2.3:29500 from 10.1.2.4 (10.1.2.3)": "connect to ip-1:29500 from ip-2 (ip-1)",
    "[127.0.0.1]:6000 and 0.0.0.0": "[127.0.0.1]:6000 and 0.0.0.0",
    "cudnn/8.0.4.30-cuda": "cudnn/8.0.4.30-cuda",
    "NCCL version 2.18.3.1, driver 535.104.5.12": "NCCL version 2.18.3.1, driver 535.104.5.12",
    "socket [fe80:0:0:1:2:3:4:5]:123 [::1]:29500 at 08:44:40": "socket [ip-1]:123 [::1]:29500 at 08:44:40",
    "c10d::send std::runtime_error 0000:0f:00.0 ad::be": "c10d::send std::runtime_error 0000:0f:00.0 ad::be",
    "mail alice@example.com or ops@lab.example.org": "mail email-1 or email-2",
    "gpu17: worker gpu17.cluster.local on GPU17, gpu170": "node-1: worker node-1 on node-1, gpu170",
    "run by alice for alice_2 (Alice), not malice": "run by user-1 for user-1_2 (user-1), not malice",
    "see https://wandb.ai/alice/p/runs/1 and https://pytorch.org/docs": "see url-1 and https://pytorch.org/docs",
    "12.3 samples/s, 3/7 = 42.9 %, tcp/ip and/or": "12.3 samples/s, 3/7 = 42.9 %, tcp/ip and/or",
    "torch.cuda.OutOfMemoryError: 3.99 GiB": "torch.cuda.OutOfMemoryError: 3.99 GiB",
    "--world_info=eyJub2RlLTAiOiBbMCwgMSwgMiwgM119 x": "--world_info=encoded-1 x",
    "logs/gpu17/rank0.log": "logs/node-1/rank0.log",
    "master.lab.example.edu:29500": "node-2:29500",
    "ip-10-0-0-12.ec2.internal": "node-2",
    "C:\\Users\\alice\\x\\train.py": "path-1\\train.py",
}


@pytest.mark.parametrize(("line", "wanted"), LINES.items())
def test_names_of_a_line(line: str, wanted: str) -> None:
    assert Names(["gpu17"], ["alice"]).replaced(line) == wanted


HOSTS = {
    "ssh: connect to host gpu17 port 22: No route to host": ["gpu17"],
    "ssh: Could not resolve hostname zeus: Name or service not known": ["zeus"],
    "pdsh@login1: node7: ssh exited with exit code 255": ["login1"],
    "slurmstepd: error: *** JOB 812347 ON h6-04-3 CANCELLED AT 2021-05-24T09:14:22 DUE TO TIME LIMIT ***": ["h6-04-3"],
    "srun: error: cn0409: task 3: Killed": ["cn0409"],
    "[cn0410:12345] *** Process received signal ***": ["cn0410"],
    "cn0411:123:456 [0] NCCL WARN Call to connect failed": ["cn0411"],
    "Mar  5 14:10:02 cn0412 kernel: NVRM: Xid (PCI:0000:0f:00): 79": ["cn0412"],
    "MASTER_ADDR=zeus MODULES_LMALTNAME=openmpi/default": ["zeus"],
    "  host      : gpu17.lab": ["gpu17.lab"],
    "nfs: server nas1 not responding": ["nas1"],
    "2025-04-02T06:00:02.000000123Z Using topology: {ProcessCoord(pipe=0, data=0): 0}": [],
    "the node which was running pod trainer-1, gpt2-1-node/latest_checkpointed_iteration.txt": [],
    "HTTPConnectionPool(host='metrics.local', port=9091)": [],
    "nc -vz MASTER_ADDR MASTER_PORT": [],
}


@pytest.mark.parametrize(("line", "hosts"), HOSTS.items())
def test_hosts_that_a_line_tells(line: str, hosts: list[str]) -> None:
    """Where hosts stand, not words of a sentence: a word taken for a host would be replaced all over the report."""
    assert list(dict.fromkeys(names_kept(hosts_told(line)))) == hosts


def test_a_replacement_is_no_name_that_somebody_bears() -> None:
    """The job's own hosts may be called node-1: then the replacements begin elsewhere."""
    names = Names(["node-1", "node-2"], [], ["node-1 and node-2 lost node-4"])
    assert names.replaced("node-1 node-2 node-1") == "node-3 node-5 node-3"


def test_the_same_name_is_the_same_all_over_the_report_and_counted() -> None:
    made = redacted(report("gpu17: alice@gpu18's /home/alice/a/train.py", ("gpu17", "gpu18")))
    assert [r["host"] for r in made.topology["ranks"]] == ["node-1", "node-2"]
    assert made.findings[0].where.hosts == ("node-1", "node-2")
    assert made.findings[0].title == "rank 0 (node-1, node-2) died"
    assert made.findings[0].evidence[0].text == "node-1: user-1@node-2's path-1/train.py"
    # hosts: 2 of topology, 2 of where, 2 of the title, 2 of failure.hosts, 2 of each of the four texts
    assert made.redaction == {
        "secrets": 0,
        "names": {"host": {"different": 2, "places": 16}, "user": {"different": 1, "places": 4}, "path": {"different": 1, "places": 4}},
    }
    assert made.notes == ["Redacted: 2 hosts, 1 user, 1 path replaced."]


def test_redacting_twice_and_after_reading_is_redacting_once() -> None:
    made = redacted(report("gpu17: alice@gpu18's /home/alice/a/train.py HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWx", ("gpu17", "gpu18")))
    once = made.to_json()
    assert redacted(made).to_json() == once
    assert redacted(Report.from_json(once)).to_json() == once
    assert without_secrets(Report.from_json(once)).to_json() == once
    jsonschema.validate(json.loads(once), json.loads(schema("report-1.json")))


def test_what_pipelog_says_itself_names_nobody() -> None:
    """`USR1@300` of an advice is no user at a host."""
    made = report("CANCELLED", ("gpu17",))
    assert made.failure is not None
    made.failure["advice"] = [{"action": "--signal=B:USR1@300, nc -vz MASTER_ADDR MASTER_PORT; look on gpu17", "expected": None}]
    assert redacted(made).failure["advice"][0]["action"] == "--signal=B:USR1@300, nc -vz MASTER_ADDR MASTER_PORT; look on node-1"


def numbers(value: Any) -> Any:
    """A document without its words."""
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items() if k not in ("redaction", "notes", "fingerprint")}
    return [numbers(v) for v in value] if isinstance(value, list) else None if isinstance(value, str) else value


NAME = st.from_regex(r"[a-z]{2,8}[0-9]{2,4}(-[a-z0-9]{1,4})?", fullmatch=True)
USER = st.text(string.ascii_lowercase, min_size=5, max_size=10).map(lambda s: f"q{s}z")
IP = st.tuples(*[st.integers(11, 126)] * 4).map(lambda p: ".".join(map(str, p)))
TOKEN = st.text(string.ascii_letters + string.digits, min_size=24, max_size=36)
TEMPLATES = (
    "{host}: Traceback, {user}@{host} {ip}", "[{host}:123] File '/home/{user}/x/{user}.py'", "USER={user} HF_TOKEN=hf_{token} ssh {host}",
    "\x1b[31m<b>{host}</b> {ip}:29500 /scratch/{user}/{host}/out.log", "https://{user}:{token}@{host}.example.com/{token}", '{{"api_key": "{token}", "h": "{host}"}}',
    "{user} on {host} ({ip}), {host}.cluster.local, /Users/{user}/a b, {user}@example.com --password {token}",
)  # fmt: skip


def test_no_secret_and_no_name_is_in_the_page() -> None:
    """The page takes a second to make: all of them at once."""
    lines = " ; ".join(line for line, _ in SECRETS)
    page = REPORTERS["html"].render(redacted(report(f"{lines} gpu17 /home/alice/x/train.py 10.1.2.3", ("gpu17",))))
    assert not [secret for _, secret in SECRETS if secret in page]
    assert not [name for name in ("gpu17", "alice", "10.1.2.3", "laptop", "example.com") if stands_in(name, page)]
    assert "node-1" in page


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(NAME, min_size=1, max_size=4, unique=True), USER, IP, TOKEN, st.lists(st.sampled_from(TEMPLATES), min_size=1, max_size=4))
@example(["node01", "node011"], "qalicez", "11.12.13.14", "A" * 24, list(TEMPLATES))
@example(["aa00"], "qaaaaaz", "11.11.11.11", "0" * 24, list(TEMPLATES))
def test_no_name_of_the_input_survives_in_any_output(hosts: list[str], user: str, ip: str, token: str, templates: list[str]) -> None:
    line = " ; ".join(t.format(host=hosts[n % len(hosts)], user=user, ip=ip, token=token) for n, t in enumerate(templates))
    line += f" USER={user}"
    before = report(line, tuple(hosts), name=f"{user}-run")
    plain = numbers(before.to_dict())
    made = redacted(before)
    assert numbers(made.to_dict()) == plain
    for name, text in rendered(made, "html"):
        for secret in (*hosts, user, ip):
            assert not stands_in(secret, text), (name, secret)
        assert f"home/{user}" not in text
        assert token not in text


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_taken(text: str) -> None:
    """Nothing raises, and what has no shape of a name or a secret is left."""
    names = Names(["gpu17"], ["alice"])
    once = names.replaced(removed(text)[0])
    assert not stands_in("gpu17", once)
    if not re.search(r"[/@:.=\\…-]|gpu17|alice|[A-Za-z0-9_]{16}", text, re.IGNORECASE):
        assert once == text


# ---- the fixtures


def occurring(folder: Path, events: Events) -> dict[str, set[str]]:
    """Hosts, users, home paths and addresses that the files of a run hold, found with patterns of the test's own."""
    raw = b"\n".join(p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix != ".gz").decode("utf-8", "replace")
    hosts = {h for h in pa.compute.unique(events.table.column("host").cast(pa.string())).to_pylist() if h}
    homes = set(re.findall(r"(?<![\w.-])/(?:home|Users|scratch|lustre|gpfs|data|mnt|p|fs|work)\d?/[\w.-]+(?:/[\w.-]+)*", raw))
    users = set(re.findall(r"/(?:home|Users)/([A-Za-z][\w.-]*)", raw)) | set(re.findall(r"\bUSER=(\w+)", raw))
    return {
        "hosts": hosts - {"localhost", "127.0.0.1", "worker", "master"},
        "users": {u for u in users if len(u) > 1} - {"user", "root", "ubuntu", "ray"},
        "paths": {h.rpartition("/")[0] for h in homes if h.count("/") > 2},
        "ips": set(re.findall(r"(?<![\w.])10(?:\.\d{1,3}){3}(?![\w.])|(?<![\w.])192\.168(?:\.\d{1,3}){2}(?![\w.])", raw)),
        "tokens": set(re.findall(r"hf_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|ghp_\w{30,}", raw)),
    }


@pytest.mark.parametrize("folder", RUNS, ids=lambda p: p.name)
def test_no_name_of_the_fixtures_is_left(folder: Path) -> None:
    events, plain = events_of(folder), report_of(folder)
    made = diagnose(events, name=folder.name, redact=True)
    assert numbers(made.to_dict()) == numbers(plain.to_dict())
    found = occurring(folder, events)
    compared = compare(made, made)
    outputs = [*rendered(made), *((f"diff-{form}", render(compared)) for form, (_, render) in COMPARED.items())]
    for name, whole in outputs:
        text = re.sub(r"<script(?![^>]*json)[^>]*>.*?</script>", "", whole, flags=re.DOTALL)  # a library's own names may be as short as a host's
        text = " ".join(text.split()).replace("node-1 of A need not be node-1 of B", "")  # a comparison's own words
        left = {w for kind in ("hosts", "users", "ips", "tokens") for w in found[kind] if stands_in(w, text)}
        left |= {p for p in found["paths"] if re.search(rf"{re.escape(p)}(?![\w-])", text)}
        assert not left, name


def test_the_command_line_redacts(tmp_path: Path) -> None:
    folder = tmp_path / "alice-run"
    folder.mkdir()
    lines = [
        "gpu17: [2024-03-05 14:10:02,101] [INFO] [launch.py:1:main] steps: 10 loss: 2.9134 iter time (s): 4.812 samples/sec: 106.401",
        "gpu17: [rank0]: Traceback (most recent call last):",
        'gpu17: [rank0]:   File "/home/alice/proj/train.py", line 3, in <module>',
        "gpu17: [rank0]: ValueError: WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 of alice is wrong at 10.1.2.3",
    ]
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    for form in REPORTERS:
        done = CliRunner().invoke(main, ["analyze", str(folder), "--redact", "--no-cache", "--format", form, "-o", "-"])
        assert done.exit_code == 0, done.stderr
        for word in ("gpu17", "alice", "10.1.2.3", "0123456789abcdef"):
            assert word not in done.stdout.lower(), (form, word)
    plain = CliRunner().invoke(main, ["analyze", str(folder), "--no-cache", "--format", "json", "-o", "-"]).stdout
    assert "alice" in plain
    assert "0123456789abcdef" not in plain


def test_a_line_cut_around_its_proof_shows_no_secret_that_lost_its_name(tmp_path: Path) -> None:
    """Wherever the cut falls, the token is gone; the proof is there."""
    for blank in (0, 40, 75, 90, 95, 99, 110):
        line = f"{'x ' * 300}Authorization: Bearer t0k3nt0k3nt0k3n {'z' * blank} NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus. {'y ' * 300}"
        (tmp_path / "train.log").write_text(f"steps: 10 loss: 0.5 iter time (s): 1.000 samples/sec: 8.0\n{line}\n")
        document = pipelog.diagnose(pipelog.read(tmp_path)).to_json()
        assert "t0k3nt0k3nt0k3n" not in document
        assert "fallen off the bus" in document
