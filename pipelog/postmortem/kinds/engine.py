"""The pipeline engine, the user's code, timeouts, and words of which nothing more is known."""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.findings import Advice
from pipelog.postmortem.case import Case
from pipelog.postmortem.kinds import Role, Strength, kind

_STACKS = Advice("next time while it hangs: `py-spy dump --pid …` on every rank; the one whose stack differs is the one that is waited for")
NAMING = Advice("set TORCH_DISTRIBUTED_DEBUG=DETAIL for the next run: gloo then names the ranks that did not come to a collective")
"""Not where they are named."""


@kind(
    "engine-timers",
    category="engine",
    pattern=r"timer has already been started|timer is not started",
    says="tripped over a timer of the pipeline engine",
    rows=("python-exception",),
    first=30,
)
def engine_timers(case: Case) -> Iterator[Advice]:
    """wall_clock_breakdown with more than one stage is broken from DeepSpeed 0.18.3 on."""
    yield Advice("set wall_clock_breakdown to false, or use DeepSpeed 0.18.2 or older: with more than one stage its timers are broken from 0.18.3 on")


@kind(
    "engine-steps-per-print",
    category="engine",
    pattern=r"unsupported operand type\(s\) for %: 'int' and 'NoneType'",
    says="needs steps_per_print",
    rows=("python-exception",),
    first=30,
)
def engine_steps_per_print(case: Case) -> Iterator[Advice]:
    """DeepSpeed 0.15.2 and later takes the remainder by a value that is not set."""
    yield Advice("set steps_per_print in the configuration")


@kind(
    "engine-no-grad",
    category="engine",
    pattern=r"^AssertionError:?(?:\n|$)|does not require grad|grad is not None",
    frame=r"pipe \S*engine\.py:\d+ _exec_(?:send_grads|backward_pass)",
    says="hands on a tensor that has no gradient",
    rows=("python-exception",),
    first=34,
)
def engine_no_grad(case: Case) -> Iterator[Advice]:
    """The engine asserts that what a stage received has a gradient after its backward pass."""
    yield Advice(
        "let every floating-point tensor that crosses the stage border take part in the loss and require grad; pass masks and positions as integers or bools"
    )


@kind(
    "engine-grad-shape",
    category="engine",
    pattern=r"Mismatch in shape: grad_output\[\d+\] has a shape of",
    frame=r"pipe \S*engine\.py:\d+ _exec_backward_pass",
    says="was sent gradients of another shape than what it had handed on",
    rows=("python-exception",),
    first=33,
)
def engine_grad_shape(case: Case) -> Iterator[Advice]:
    """The engine keeps its p2p buffers while shapes change from batch to batch: what is received has the shape of an earlier micro-batch."""
    yield Advice(
        "give every micro-batch the same shape (pad to one length, drop the last short batch), or call engine.reset_activation_shape() before a batch of another one"
    )


@kind(
    "object-damaged",
    category="unknown",
    pattern=r"EOFError: Ran out of input|UnpicklingError|invalid load key",
    frame=r"raised \S*distributed\S*:\d+ _tensor_to_object",
    says="received an object of another rank that was empty or damaged; why, the lines do not say",
    rows=("python-exception",),
    known=False,
    first=8,
    missing=("the log of the rank that sent it: whether it had sent the object, and said anything before",),
)
def object_damaged(case: Case) -> Iterator[Advice]:
    """recv_object_list and its kin unpickle what came: nothing arrived of it, or something else (another order of messages, a broken transport)."""
    yield Advice(
        "see on the sending side whether both ranks call the same functions in the same order, and try the gloo backend or NCCL_DEBUG=INFO for this call"
    )


@kind(
    "engine-meta",
    category="engine",
    pattern=r"Could not send meta type|Buffer for metadata is too small|Only train_batch\(\) is accessible|PipelineError|requires gradients enabled|Expected .* to be a tuple|partial.*PartitionedTensor",
    says="was stopped by the pipeline engine",
    rows=("python-exception",),
    first=36,
)
def engine_meta(case: Case) -> Iterator[Advice]:
    """What stages hand on, or how the engine is called, is not as it expects."""
    yield Advice("compare shapes, types and the number of tensors at the border of the stages; use train_batch() and eval_batch() only")


@kind(
    "two-types",
    category="engine",
    pattern=r"mat1 and mat2 must have the same dtype(?:, but got \w+ and \w+)?",
    says="multiplied tensors of two types ({matched})",
    rows=("python-exception",),
    first=36,
)
def two_types(case: Case) -> Iterator[Advice]:
    """A tensor and a weight are not of one precision: data or masks that were not cast, or a module that the engine did not convert."""
    yield Advice(f"see {case.own or 'the innermost frame of your own code'}: cast what comes in to the type of the weights there")
    yield Advice(
        "look for a module that is made or moved after deepspeed.initialize, and for data that are not cast (bf16 and fp16 convert the model, not the batch)"
    )


@kind(
    "timeout-gloo",
    category="hang",
    pattern=r"Timed out waiting \d+ms for (?P<what>send|recv) operation|Application timeout|Timeout(?:Error)?.*(?:all_?reduce|broadcast|barrier|gather)|monitoredBarrier|Monitored barrier|wait timeout|Wait timeout|Operation timed out",
    says="waited in vain for another rank",
    known=False,
    strength=Strength.TIMEOUT,
    first=22,
    missing=("what the rank that did not answer was doing: py-spy dump of it while it hangs", "its own log"),
)
def timeout_gloo(case: Case) -> Iterator[Advice]:
    """A send or receive that nobody answered in time: a symptom of the rank that did not come. NCCL's settings change nothing here."""
    yield _STACKS
    yield NAMING


@kind(
    "timeout-nccl",
    category="hang",
    pattern=r"Watchdog caught collective operation timeout|Timeout at NCCL work|watchdog got stuck|Heartbeat monitor timed out|no heartbeat|watchdog hang|timed out in call to wait|detected timeout|(?:due to (?:a )?|NCCL )collective timeout|ran for \d+ milliseconds before timing out",
    says="waited in vain in a collective or p2p call",
    known=False,
    strength=Strength.TIMEOUT,
    first=21,
    missing=(
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1: the flight recorder shows who missed which call",
        "py-spy dump of every rank while it hangs",
    ),
)
def timeout_nccl(case: Case) -> Iterator[Advice]:
    """The watchdog says that a call did not finish; not why."""
    yield from _hang()


@kind(
    "timeout-hccl",
    category="hang",
    pattern=r"error code(?: is |:)(?:507046|507048|107020)\b|OPS function error: Hccl\w+, error code is (?:6|7|9|1\d)\b|Notify register times out|Getting socket times out",
    says="waited in vain in a call of HCCL",
    known=False,
    strength=Strength.TIMEOUT,
    rows=("python-exception", "bare-exception", "level", "hccl-notify"),
    first=21,
    missing=(
        "what the rank that did not answer was doing: its own log, py-spy dump of every rank while it hangs",
        "the device logs of CANN (~/ascend/log)",
    ),
)
def timeout_hccl(case: Case) -> Iterator[Advice]:
    """Ascend's collective library: EI0002 (a notify did not come in time), EI0006 (a socket did not open in time), or the synchronisation that waited for them."""
    yield Advice("find the rank whose log has another error or none, and begin there: the others waited for it")
    yield _STACKS


def _hang() -> Iterator[Advice]:
    yield _STACKS
    yield Advice("set TORCH_NCCL_TRACE_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_NCCL_DESYNC_DEBUG=1 for the next run")


@kind(
    "nccl-abort",
    category="unknown",
    pattern=r"watchdog thread terminated|taking the entire process down|Some NCCL operations have failed|Exception \(either an error or timeout\)|failure detected by watchdog|has aborted its NCCL|Process group watchdog",
    says="was taken down by NCCL's watchdog",
    role=Role.CASCADE,
    known=False,
    strength=Strength.ECHO,
    first=33,
    missing=("what the watchdog said before it: the standard error of that rank from the start of the wait on", "the logs of the other ranks"),
)
def nccl_abort(case: Case) -> Iterator[Advice]:
    """What follows a timeout or an asynchronous error of NCCL."""
    yield from _hang()


@kind(
    "checkpoint-summary",
    category="checkpoint",
    pattern=r"CheckpointException ranks:",
    says="was told that others could not save or load the checkpoint",
    role=Role.CASCADE,
    known=False,
    strength=Strength.ECHO,
    rows=("python-exception", "bare-exception"),
    first=9,
    missing=("the tracebacks of the ranks that the exception lists: they stand below it, or in their own logs",),
)
def checkpoint_summary(case: Case) -> Iterator[Advice]:
    """torch.distributed.checkpoint raises on every rank what some of them raised; the exceptions themselves follow with `(RANK n)`."""
    yield Advice("look at the ranks that the exception lists: the exceptions below it are theirs")


@kind(
    "noise",
    category="unknown",
    pattern=r"destroy_process_group\(\) was not called|hasn't been destroyed|leaked (?:semaphore|shared_memory)|resource_tracker|using GPU \d+ (?:to perform barrier|as device used)|libibverbs|Failed to open lib\w+|Could not acquire GIL"
    r"|ibvwrap|NCCL_IB_DISABLE|Call to ibv_open_device|UserWarning|FutureWarning|DeprecationWarning|OMP_NUM_THREADS|unsupported transport|Plugin|No plugin found|cudaDriverVersion",
    says="prints a harmless warning",
    role=Role.BENIGN,
    known=False,
    strength=Strength.WORD,
    first=6,
)
def noise(case: Case) -> Iterator[Advice]:
    """Printed by runs that end well, too."""
    return
    yield


@kind(
    "import-notice",
    category="unknown",
    pattern=r"^AttributeError: _ARRAY_API not found",
    says="prints a harmless notice of a module that was built for another version",
    role=Role.BENIGN,
    known=False,
    strength=Strength.WORD,
    rows=("python-exception", "bare-exception"),
    first=6,
)
def import_notice(case: Case) -> Iterator[Advice]:
    """NumPy prints a traceback where a module of NumPy 1.x is imported, and raises nothing; where that cannot go on, an ImportError follows."""
    return
    yield


@kind(
    "optional-import",
    category="unknown",
    pattern=r"^(?:ModuleNotFound|Import)Error: ",
    frame=r"raised \S*xformers/__init__\.py:\d+ _is_triton_available",
    says="prints a harmless notice of a module that is not there",
    role=Role.BENIGN,
    known=False,
    strength=Strength.WORD,
    rows=("python-exception",),
    first=6,
)
def optional_import(case: Case) -> Iterator[Advice]:
    """xformers logs the traceback of its attempt to import Triton, and does without."""
    return
    yield


@kind(
    "engine",
    category="engine",
    pattern=r"^[\w.]*(?:Error|Exception|Assertion\w*)",
    frame=r"raised \S*deepspeed/\S*:\d+ ",
    says="failed inside DeepSpeed",
    rows=("python-exception",),
    first=70,
)
def engine(case: Case) -> Iterator[Advice]:
    """An exception raised in DeepSpeed's own code, with nothing of the user's below it."""
    yield Advice("search DeepSpeed's issues for the message and the frame; try the neighbouring releases")


@kind(
    "code",
    category="code",
    pattern=r"^(?P<what>[A-Za-z_][\w.]*)(?::|\n|$)",
    says="raised {what}",
    rows=("python-exception",),
    first=80,
)
def code(case: Case) -> Iterator[Advice]:
    """An exception of the user's code, or of a library that it called."""
    place = case.own or "the innermost frame of your own code"
    if case.match(r"^[\w.]+:?\s*$"):
        yield Advice(
            f"see {place} and the frames below it in the traceback: it says no more than that; the source line there says what was asked for"
        )
    else:
        yield Advice(f"see {place}: the message says what was wrong there")


@kind(
    "bare-exception",
    category="unknown",
    pattern=r"^(?P<what>[A-Za-z_][\w.]*)",
    says="raised {what}, whose traceback is not in the files",
    known=False,
    strength=Strength.WORD,
    rows=("bare-exception",),
    first=79,
    missing=("the traceback: the whole output of that process",),
)
def bare_exception(case: Case) -> Iterator[Advice]:
    """The last line of a traceback alone: where it was raised, and whether anybody caught it, is not known."""
    yield Advice("find the traceback that the line belongs to: the rank's own log, the output of the job as the scheduler keeps it")


@kind(
    "traceback-cut",
    category="unknown",
    pattern=r"",
    says="raised an exception of which the files hold only the beginning",
    known=False,
    strength=Strength.WORD,
    rows=("traceback-cut",),
    first=1,
    missing=("the rest of the traceback: the file ends within it",),
)
def traceback_cut(case: Case) -> Iterator[Advice]:
    """A traceback whose last line, with the exception, was not written or not copied: what was raised is not known."""
    yield Advice("copy the file again, or look for the rest where the scheduler keeps the job's output; the frames show where it was raised")


@kind(
    "traceback-cut-below",
    category="unknown",
    pattern=r"\n(?:\S*?/)??(?P<at>(?:[^/\s]+/){0,3}[^/\s]+:\d+ \S.*)",
    says="raised an exception of which the files hold only the beginning, down to {at}",
    known=False,
    strength=Strength.WORD,
    rows=("traceback-cut",),
    first=0,
    missing=("the rest of the traceback: the file ends within it",),
)
def traceback_cut_below(case: Case) -> Iterator[Advice]:
    """A traceback of which frames were written, and not the exception: where it went is known, neither what was raised nor whether deeper."""
    yield Advice("copy the file again, or look for the rest where the scheduler keeps the job's output: the exception itself, and the frames below")


@kind(
    "word",
    category="unknown",
    pattern=r"",
    says="said: {line}",
    known=False,
    strength=Strength.WORD,
    first=99,
    missing=("the whole output of that process",),
)
def word(case: Case) -> Iterator[Advice]:
    """A line that calls itself an error."""
    yield Advice("read the lines around it")
