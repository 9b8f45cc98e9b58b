"""What training scripts print of a step themselves, in the commonest forms, on a line of its own.

    step: 290, loss: 0.18337950110435486
    step 290, loss: 0.1834, lr: 0.0001
    {'loss': 2.1177, 'learning_rate': 0.0001874402217563114, 'epoch': 0.28}          Hugging Face Trainer: says no step
    {'loss': 1.46, 'grad_norm': 0.397, …, 'train_speed(s/it)': 4.2, 'global_step/max_steps': '1495/1500'}            ms-swift; 'iteration': '400/426' of its Megatron
    {'eval_loss': 2.0713, 'eval_runtime': 12.8, 'epoch': 0.28}
    step:   120 /  1000 loss: 0.4137 iter time (s): 2.310 samples/sec: 1.732 eta: 38m12s           diffusion-pipe, qlora-pipe: DeepSpeed's step line

Read are loss, learning rate and gradient norm; what else stands in such a line means something else in every script.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.parsing import Records, Rows, lines, records

_NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)"
_TRAINER = (("loss", "loss"), ("grad_norm", "grad_norm"), ("learning_rate", "learning_rate"))


@records(
    "script-step",
    mark=(", loss:", ", Loss:"),
    pattern=rf"^, [lL]oss: ?(?P<loss>{_NUMBER})(?:, [A-Za-z][\w ]*: {_NUMBER})*\s*$",
    head=r"(?:^|[\]>:|] ?)[sS]tep:? ?(?P<step>\d{1,9})$",
)
def step(found: Records) -> Iterator[Rows]:
    """The loss of a step."""
    yield found.rows("scalar", "loss", step=found.int("step"), value=found.float("loss"))


@records(
    "script-trainer",
    mark="{'loss': ",
    pattern=rf"^\{{'loss': '?(?P<loss>{_NUMBER})'?(?:, 'grad_norm': '?(?P<grad_norm>{_NUMBER})'?)?(?:, 'learning_rate': '?(?P<learning_rate>{_NUMBER})'?)?[,}}]"
    r"(?:[^{}]*'(?:global_step/max_steps|iteration)': '(?P<step>\d{1,9})/(?P<total>\d{1,9})')?",
    torn=r"^\{'loss': \d[^}]*$",
)
def trainer(found: Records) -> Iterator[Rows]:
    """The figures of a logging interval of Hugging Face's Trainer; of ms-swift's with their step, and how many there will be."""
    step = found.int("step")
    numbered = found.where(found.has("step"))
    yield numbered.rows("step", "swift", step=numbered.int("step"))
    yield numbered.rows("iteration", "swift", step=numbered.int("step"), value=numbered.float("total"), text="loss")
    for group, name in _TRAINER:
        given = found.has(group)
        mine = found.where(given)
        yield mine.rows("scalar", name, step=step.filter(given), value=mine.float(group))


@records("script-evaluation", mark="{'eval_loss': ", pattern=rf"^\{{'eval_loss': '?(?P<loss>{_NUMBER})'?[,}}]")
def evaluation(found: Records) -> Iterator[Rows]:
    """The loss of an evaluation of Hugging Face's Trainer."""
    yield found.rows("scalar", "eval_loss", value=found.float("loss"))


# [2024-05-27 12:00:04.110] [INFO] [qlora-pipe] step:    10 /   640 loss: 1.2034 iter time (s): 3.210 samples/sec: 4.984 eta (h): 0.562
@lines(
    "pipe-step",
    mark=(" eta: ", " eta (h): "),
    pattern=rf"^(?:.*[\]|:>] ?)?step: +(?P<step>\d{{1,9}}) / +(?P<total>\d{{1,9}}) loss: (?P<loss>{_NUMBER}) iter time \(s\): (?P<seconds>{_NUMBER}) samples/sec: (?P<rate>{_NUMBER}) eta",
)
def pipe_step(found: Records) -> Iterator[Rows]:
    """Give a step of a DeepSpeed pipeline engine whose step line was replaced: the time is the mean over steps_per_print steps, as there."""
    step = found.int("step")
    yield found.rows("step", "deepspeed", step=step, dur_ns=found.seconds("seconds"))
    yield found.rows("iteration", "deepspeed", step=step, value=found.float("total"), text="loss samples_per_s")
    yield found.rows("scalar", "loss", step=step, value=found.float("loss"))
    yield found.rows("scalar", "samples_per_s", step=step, value=found.float("rate"))
