"""`pipelog plan`: batch sizes, stages and schedules, before the job."""

from __future__ import annotations

from typing import Any

import click

from pipelog.cli._shared import give, name_of, read_events, setting


@click.command()
@click.argument("config", required=False, type=click.Path(), metavar="[DS_CONFIG]")
@click.option("--stages", type=click.IntRange(min=1), metavar="N", help="Pipeline stages.  [default: the configuration's, or the run's]")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of the whole job.  [default: the run's]")
@click.option("--tp", type=click.IntRange(min=1), metavar="N", help="Tensor-parallel ranks of a stage.  [default: the run's, or 1]")
@click.option("--train-batch", type=click.IntRange(min=1), metavar="N", help="train_batch_size, over the configuration's.")
@click.option("--micro-batch", type=click.IntRange(min=1), metavar="N", help="train_micro_batch_size_per_gpu, over the configuration's.")
@click.option("--accumulation", type=click.IntRange(min=1), metavar="N", help="gradient_accumulation_steps (m), over the configuration's.")
@click.option("--from", "run", type=click.Path(), metavar="RUN", help="A measured run, its folder or report.json: shape, sizes, costs, memory.")
@click.option("--costs", metavar="MS,…", help="Compute of one micro-batch by stage in ms: 90,90,210,90, or forward/backward: 30/60,….")
@click.option("--transfer", type=click.FloatRange(min=0), metavar="MS", help="Time of a message between two stages in ms.")
@click.option("--layers", metavar="N|C,…", help="How many equal layers there are, or the relative cost of each: they limit and shape the stages.")
@click.option("--schedule", "schedules", multiple=True, metavar="NAME", help="1f1b, gpipe, interleaved, zb-h1, zb-h2; the first one is planned with.")
@click.option("--chunks", metavar="V,…", help="Chunks a stage for interleaving.  [default: 2]")
@click.option("--set", "settings", multiple=True, metavar="RULE.OPTION=VALUE", help="Set the threshold PL102.limit, as for analyze.")
@click.option("--format", "form", type=click.Choice(("text", "json", "md", "html")), help="Output wanted.  [default: by the suffix of -o, else text]")
@click.option("-o", "--output", metavar="FILE", help="Where to write, - for standard output.  [default: standard output; pipelog-plan.html for html]")
def plan(config: str | None, run: str | None, form: str | None, output: str | None, settings: tuple[str, ...], **given: Any) -> None:
    """Check a job's batch sizes before it starts, and compare micro-batches, stages and schedules.

    Shows the bubble of each, what it holds in memory, and its step time where a run or costs are given.
    """
    from pipelog.planning import outputs, typed  # noqa: PLC0415
    from pipelog.planning.config_file import read  # noqa: PLC0415
    from pipelog.planning.plan import plan as planned  # noqa: PLC0415
    from pipelog.planning.text import styled  # noqa: PLC0415

    wanted = typed.wanted(read(config) if config else None, _measured(run) if run else None, [setting(s) for s in settings], **given)
    made = planned(wanted)
    give(made, form or outputs.by_suffix(output), output, outputs.OUTPUTS, styled, "pipelog-plan.html")


def _measured(run: str) -> Any:
    """A report.json is read; anything else is analyzed first."""
    from pipelog.diagnosis import diagnose  # noqa: PLC0415
    from pipelog.planning.from_run import measured, saved  # noqa: PLC0415

    report = saved(run) or diagnose(read_events((run,), None, cached=True, quiet=False), name=name_of((run,)))
    return measured(report.to_dict())
