"""Configuration, mesh, checkpoints, data, dependencies: what fails before or between steps for a reason that it names."""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.findings import Advice
from pipelog.postmortem.case import Case
from pipelog.postmortem.kinds import kind

_EXCEPTION = ("python-exception", "level")


@kind(
    "batch-sizes",
    category="config.batch",
    pattern=r"Check batch related parameters\. (?P<why>.*)|(?i:train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps|train batch size|micro batch size per gpu|gradient accumulation steps).*(?:not equal|has to be|must be|divisible|greater than 0|needs to be)"
    r"|global batch size \(?\d+\)? is not divisible|(?i:\bbatch.?size\b[^.\n]{0,40}(?:divisible by|multiple of)[^.\n]{0,40}micro.?batch)|(?i:micro.?batch.?size).*(?:not divisible|must divide|mismatch|divisible)"
    r"|(?i:\bmicro-?batch(?:es)?\b)[^\n]{0,80}(?:should range in|not divisible|should be (?:a multiple|divisible|larger|greater|at least)|(?:must|has to|have to) be (?:a multiple|divisible|larger|greater|at least))",
    says="refused the batch sizes",
    rows=_EXCEPTION,
    job=True,
    first=20,
)
def batch_sizes(case: Case) -> Iterator[Advice]:
    """train_batch_size = micro-batch x accumulation steps x data-parallel replicas; the last factor is not the number of GPUs."""
    if case.apart:
        yield Advice(
            f"only {case.apart} refuses them: compare the configuration that it reads with that of the other hosts (`sha256sum` on each), its code and environment too, and copy the right one; no number has to change where the others run with theirs"
        )
        return
    numbers = case.match(r"(\d+) != (\d+) \* (\d+) \* (\d+)")
    if numbers:
        train, micro, m, dp = (int(n) for n in numbers.groups())
        yield Advice(
            f"set train_batch_size to {micro * m * dp} (= {micro} × {m} × {dp} data-parallel replicas, not GPUs), or leave one of the three out"
        )
        if train % (micro * dp) == 0:
            yield Advice(f"or keep train_batch_size {train} and set gradient_accumulation_steps to {train // (micro * dp)}")
    else:
        yield Advice("leave one of train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps out: DeepSpeed derives it")


@kind(
    "mesh",
    category="config.mesh",
    pattern=r"(?i)world.?size \(?\d*\)?.*(?:not divisible|is not a multiple|must be divisible)|Invalid Grid|must provide num_stages or topology|ElasticityIncompatibleWorldSize|ElasticityError|is not divisible by .*(?:parallel|stages)"
    r"|num_layers.*(?:divisible|must be)|cannot partition|found no valid layers to partition|model must base PipelineModule|number of (?:pipeline )?stages.*(?:divi|must)|number of GPUs.*divisible"
    r"|(?:stages|parallel[\w ]*size)\b[^.]{0,60}must (?:evenly )?divide",
    says="cannot be laid out on these ranks",
    rows=_EXCEPTION,
    job=True,
    first=21,
)
def mesh(case: Case) -> Iterator[Advice]:
    """World size, stages, replicas and tensor-parallel ranks do not multiply."""
    sizes = case.match(r"world size \((\d+)\) is not divisible by .*?\((\d+)\) times .*?\((\d+)\)")
    if sizes:
        world, tp, pp = (int(n) for n in sizes.groups())
        one = tp * pp
        times = world // one
        fit = f"{times * one} or {(times + 1) * one}" if times else f"{one}"
        yield Advice(f"use a number of GPUs that {one} (= {tp} tensor × {pp} pipeline) divides: {fit} instead of {world}")
    else:
        yield Advice("make world size = pipeline stages × data-parallel replicas × tensor-parallel ranks")


@kind(
    "data-decoding",
    category="data",
    pattern=r"^(?:[\w.]*JSONDecodeError|UnicodeDecodeError|zlib\.error|gzip\.BadGzipFile|[\w.]*UnidentifiedImageError|pyarrow\S*ArrowInvalid|EOFError)\b",
    frame=r"(?m)^pipe .*_exec_load_micro_batch|^(?:raised|own) (?!.*conf)\S*?(?:dataset|dataloader|data_loader|collat|sampler|stream|shard|corpus|jsonl)\w*[^/\s]*:\d+ |^own .* (?:__getitem__|__next__|__iter__|collate\w*|_next_batch|next_batch|get_batch|read_sample\w*)$",
    says="could not decode what it read as data",
    rows=("python-exception",),
    first=34,
)
def data_decoding(case: Case) -> Iterator[Advice]:
    """A record of the data that is cut or of another encoding: the engine was loading a micro-batch, or a data set was read."""
    yield Advice("find the record: run the reader alone over the file or shard of that step; skip or repair it, and see how it came to be cut")


@kind(
    "zero-with-pipeline",
    category="config.other",
    pattern=r"ZeRO-2 and ZeRO-3 are incompatible with pipeline",
    says="uses ZeRO stage 2 or 3 together with pipeline parallelism",
    job=True,
    first=19,
)
def zero_with_pipeline(case: Case) -> Iterator[Advice]:
    """Gradients of a pipeline stage accumulate over micro-batches, which ZeRO-2 and 3 shard away."""
    yield Advice("set zero_optimization.stage to 1 (or 0)", "optimizer states are still sharded over the replicas")


@kind(
    "configuration",
    category="config.other",
    pattern=r"DeepSpeedConfigError|(?i:deepspeed.?config).*(?:not exist|not found|unknown|Expected|invalid|missing)|Expected a string path to an existing deepspeed config|unrecognized arguments|the following arguments are required"
    r"|error: argument|invalid choice|JSONDecodeError.*|json\.decoder|ValidationError|pydantic|Partitioning method \w+ not implemented|Unknown (?:optimizer|scheduler)|TOMLDecodeError|yaml\.\w*Error",
    says="refused its configuration",
    rows=_EXCEPTION,
    job=True,
    first=35,
)
def configuration(case: Case) -> Iterator[Advice]:
    """A file, a key or an argument that is not as expected."""
    yield Advice("put right the key, file or argument that the message names; `python -m json.tool ds_config.json` shows broken JSON")


@kind(
    "hf-config-mismatch",
    category="config.other",
    pattern=r"Please correct the following DeepSpeed config values that mismatch TrainingArguments",
    says="was given other values by the DeepSpeed configuration than by TrainingArguments",
    rows=_EXCEPTION,
    job=True,
    first=19,
)
def hf_config_mismatch(case: Case) -> Iterator[Advice]:
    """Transformers compares both and refuses to choose."""
    yield Advice('set each value that the message lists to "auto" in the DeepSpeed configuration, or to the same value in both')


@kind(
    "config-check",
    category="config.other",
    pattern=r"",
    frame=r"^raised \S*deepspeed/runtime/(?:config\w*|\w+/config)\.py:",
    says="was refused its configuration by DeepSpeed",
    rows=("python-exception",),
    job=True,
    first=36,
)
def config_check(case: Case) -> Iterator[Advice]:
    """Raised by the modules of DeepSpeed that read the configuration, whatever the words."""
    yield Advice("put right the keys that the message names, and what contradicts them in the script's own arguments")


@kind(
    "arguments-check",
    category="config.other",
    pattern=r"^(?:AssertionError|ValueError|RuntimeError|NotImplementedError|[\w.]*Argument\w*Error)\b",
    frame=r"(?m)^raised \S*?(?:arg(?:ument)?s?(?:_\w+)?\.py:\d+ \w*(?:validat|parse|verify|check_arg|check_conf)\w*|\w*config(?:uration)?\w*\.py:\d+ (?:__post_init__|\w*(?:validat|verify|check_arg|check_conf)\w*))$",
    says="was refused its arguments",
    rows=("python-exception",),
    job=True,
    first=37,
)
def arguments_check(case: Case) -> Iterator[Advice]:
    """Raised where a framework checks its arguments before anything is built: combinations that exclude each other, variables that must be set."""
    if "CUDA_DEVICE_MAX_CONNECTIONS" in case.text:
        yield Advice(
            "export CUDA_DEVICE_MAX_CONNECTIONS=1 in the job script, and pass it on to every host (srun --export, mpirun -x, pdsh's .deepspeed_env)"
        )
    else:
        yield Advice("put right the argument or variable that the message names, in the command of the job script")


@kind(
    "config-file",
    category="config.other",
    pattern=r"FileNotFoundError.*\.(?:json|ya?ml|toml)\b|No such file or directory: '[^']*\.(?:json|ya?ml|toml)'|config.*(?:does not exist|no such file)",
    says="did not find its configuration file",
    rows=_EXCEPTION,
    job=True,
    first=31,
)
def config_file(case: Case) -> Iterator[Advice]:
    """A relative path is taken from the working directory of the launcher on each host."""
    yield Advice("give --deepspeed_config an absolute path that exists on every host")


@kind(
    "checkpoint-damaged",
    category="checkpoint",
    pattern=r"(?i)PytorchStreamReader failed|failed finding central directory|UnpicklingError|invalid (?:header|magic)|SafetensorError: .*(?:header|MetadataIncomplete|InvalidHeader)",
    says="read a damaged file of weights",
    rows=_EXCEPTION,
    first=21,
)
def checkpoint_damaged(case: Case) -> Iterator[Advice]:
    """A file that was cut while it was written, or is none of the expected kind: other ranks read other files, so the rank tells which."""
    which = f" {case.path}" if case.path else ""
    yield Advice(
        f"compare the size of the file{which} with those of the other ranks; take the last complete checkpoint before it (edit the file `latest`)"
    )
    yield Advice("see how it came to be cut: a job that was killed while it saved, a full disk, an interrupted copy")


@kind(
    "checkpoint-shape",
    category="checkpoint",
    pattern=r"(?i)DP world size of \d+ but the current|checkpoint being loaded used|zero checkpoints paths are missing|seems a bogus DeepSpeed checkpoint|Error\(s\) in loading state_dict|size mismatch for|Missing key\(s\) in state_dict"
    r"|Unexpected key\(s\) in state_dict|(?:layer_\d+|mp_rank_\d+|zero_pp_rank)\S* .*(?:not found|No such file|does not exist)|No such file or directory: '[^']*(?:global_step|layer_\d+|mp_rank|model_states|optim_states)[^']*'"
    r"|checkpoint.*(?:does not exist|not found|corrupt|mismatch|incompatible|missing)|Unable to (?:find|load) .*checkpoint"
    r"|did not find .*tracker file|Unable to find latest file|is not a distributed checkpoint|\bCheckpointingException: |No metadata file (?:found|in)\b",
    says="could not use the checkpoint",
    rows=_EXCEPTION,
    job=True,
    first=22,
)
def checkpoint_shape(case: Case) -> Iterator[Advice]:
    """Missing, damaged, or written for another number of stages or replicas."""
    sizes = case.match(r"DP world size of (\d+) but the current world size is (\d+)")
    if sizes:
        yield Advice(
            f"resume with {sizes.group(1)} data-parallel replicas as it was written, or convert it: python -m deepspeed.checkpoint.ds_to_universal, then load_universal"
        )
        yield Advice("or load without optimizer states (load_optimizer_states=False)", "the optimizer starts anew")
    else:
        yield Advice("list the folder of the checkpoint against what is missing; take the last complete one before it (edit the file `latest`)")


@kind(
    "checkpoint-frame",
    category="checkpoint",
    pattern=r"^(?!.*(?:out of memory|No space)).*(?:FileNotFoundError|RuntimeError|KeyError|EOFError|AssertionError|OSError|ValueError)",
    frame=r"(?:load_checkpoint|_load_checkpoint|load_state_dict|save_checkpoint|_save_checkpoint|load_module_state_dict|ds_to_universal|_load_zero_checkpoint|checkpoint_engine|state_dict_factory)\b",
    says="failed at the checkpoint",
    rows=("python-exception",),
    first=45,
)
def checkpoint_frame(case: Case) -> Iterator[Advice]:
    """An exception raised inside the code that loads or saves checkpoints."""
    yield Advice("check that the folder holds a complete checkpoint of this model and this layout; else take the one before")


@kind(
    "data-ended",
    category="data",
    pattern=r"^StopIteration",
    says="came to the end of its data iterator",
    rows=("python-exception",),
    first=33,
)
def data_ended(case: Case) -> Iterator[Advice]:
    """train_batch takes one batch per micro-batch; an iterator that ends inside a step raises."""
    m = case.config.micro_batches
    yield Advice(
        "wrap the loader: deepspeed.utils.RepeatingLoader(loader); or end the loop before the data do"
        + (f" ({m} batches go into each step)" if m else "")
    )


@kind(
    "data-worker",
    category="data",
    pattern=r"Caught \w+ in DataLoader worker process|in DataLoader worker",
    says="failed in a data-loader worker",
    rows=("python-exception",),
    first=32,
)
def data_worker(case: Case) -> Iterator[Advice]:
    """The exception of the worker is the cause; it is raised again in the rank."""
    yield Advice("run the data set alone over the samples of that step with num_workers=0; skip or repair the sample that the exception names")


@kind(
    "data-frame",
    category="data",
    pattern=r"^[\w.]*(?:Error|Exception)",
    frame=r"(?m)^(?:raised|own) \S*?(?:dataset|dataloader|data_loader|collat|sampler|tokeniz)[^/\s]*:\d+ |(?:__getitem__|collate\w*|_next_batch|get_batch)$",
    says="failed while it loaded data",
    rows=("python-exception",),
    first=46,
)
def data_frame(case: Case) -> Iterator[Advice]:
    """Raised inside a data set, a sampler or a collate function."""
    yield Advice("run the data set alone over the samples of that step; skip or repair the sample")


@kind(
    "build-failed",
    category="dependency",
    pattern=r"^FAILED: (?P<what>[\w./+-]+)",
    says="could not build an extension: the compiler refused {what}",
    rows=("build-failed",),
    job=True,
    first=25,
)
def build_failed(case: Case) -> Iterator[Advice]:
    """Ninja names the object that its compiler failed at; imports of the library that was to be made fail behind it."""
    yield Advice(
        "read the compiler's lines below it: the first `error:` says what it refused (a compiler that this nvcc does not support, a missing header)"
    )
    yield Advice("build once outside the job (`ds_report` shows what is built), on a host with the compiler that the CUDA toolkit allows (CC, CXX)")


@kind(
    "dependency",
    category="dependency",
    pattern=r"ModuleNotFoundError|ImportError|No module named|undefined symbol|cannot open shared object|Error building extension|Ninja is required|CUDA_HOME.*(?:not set|does not exist)|Unable to JIT load|CUDAMismatchException"
    r"|nvcc.*(?:not found|fatal)|GLIBC\w*_[\d.]+' not found|has no attribute '(?:_six|inf)'|version conflict|VersionConflict|requires .* but you have|Installed CUDA version .* does not match|DistributionNotFound|numpy\.core\.multiarray failed",
    says="misses a dependency, or has one that does not fit",
    rows=("python-exception", "shell-command"),
    job=True,
    first=26,
)
def dependency(case: Case) -> Iterator[Advice]:
    """An import, an extension or a version."""
    if "torch._six" in case.text:
        yield Advice("torch 2.0 removed torch._six: use a DeepSpeed of 0.8 or later, or torch 1.13")
    else:
        yield Advice("install what the message names into the environment of every host; `ds_report` shows operators and versions")


@kind(
    "loss-scale",
    category="numerics.loss-scale",
    pattern=r"Current loss scale already at minimum|loss scale.*(?:minimum|too small|below)|Minimum loss scale reached",
    says="skipped so many fp16 steps that the loss scale reached its minimum",
    of_ranks="saw the overflows that took the loss scale to its minimum; no other rank reported one",
    job=True,
    first=15,
)
def loss_scale(case: Case) -> Iterator[Advice]:
    """DeepSpeed ends the run when the scale cannot fall further: the gradients are inf or nan at every step."""
    yield Advice(
        "use bf16 if the devices have it; else look for the first nan or inf (rank in 'detected overflow'), lower the learning rate, clip gradients"
    )
    yield Advice("resume from a checkpoint before the row of overflows")


@kind(
    "nan-rerun",
    category="numerics.nan",
    pattern=r"Unexpected result (?:tensor\()?[-+]?(?:nan|inf)\S*.*? on rank \d+ at iteration #(?P<step>\d+)",
    says="computed a result that is not a number (iteration {step})",
    rows=("megatron-rerun",),
    known=False,
    first=24,
    missing=("whether the same step gives it again on another GPU: only then is it the model's or the data's",),
)
def nan_rerun(case: Case) -> Iterator[Advice]:
    """Megatron's rerun state machine found it, and says on which rank."""
    yield Advice("read what its reruns found: a result that does not come again speaks for the GPU, one that does for data or model")
    where = f" of rank {case.rank}" if case.rank is not None else ""
    yield Advice(f"if it is the model's: resume from before the step and look at the batch{where}; torch.autograd.detect_anomaly on that batch alone")


@kind(
    "divergence-guard",
    category="numerics.divergence",
    pattern=r"(?i)\b(?:training|loss|run|optimi[sz]ation|model|perplexity)\b[^.\n]{0,40}\bdiverg(?:ed|ing|ence)\b|\bdivergence detected\b|^[\w.]*Diverg\w*(?:Error|Exception)?:",
    says="stopped at a loss that had diverged",
    rows=("python-exception", "level"),
    job=True,
    first=26,
)
def divergence_guard(case: Case) -> Iterator[Advice]:
    """A check of the script ended the run: the loss is finite, and far above where it was."""
    yield Advice(
        "resume from a checkpoint before the loss rose, with a lower learning rate, a longer warm-up or clipped gradients; skip the batches there"
    )


@kind(
    "nan-guard",
    category="numerics.nan",
    pattern=r"(?i)loss is nan|nan loss|found nan|nan (?:or inf )?(?:in|detected|encountered)|loss.*(?:is|became|equals?) (?:nan|inf)|non-?finite|returned nan values|Rank \d+: found NaN|not finite",
    says="stopped at a value that is not a number",
    rows=("python-exception", "level"),
    first=25,
)
def nan_guard(case: Case) -> Iterator[Advice]:
    """A check of the framework or the script ended the run."""
    yield Advice("resume from before the step; look at its batch; torch.autograd.detect_anomaly on that batch alone")
