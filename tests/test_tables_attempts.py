"""Which rows belong to which start of the job: one file or many, with times or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelog import diagnose, read
from pipelog.events import Input
from tests.making import Row, step, tables, topology_map

SECOND = 10**9
T0 = 1_700_000_000 * SECOND


def start(name: str = "launcher", **more: Any) -> Row:
    return {"kind": "start", "name": name, **more}


def at(seconds: float, **more: Any) -> Row:
    """A stamped line that says nothing else."""
    return {"kind": "phase", "name": "note", "clock": "log", "start_ns": T0 + round(seconds * SECOND), **more}


def pieces(made: Any) -> list[tuple[str, int, int | None, int]]:
    """(file, first line, line after the last, attempt) of each segment."""
    segments = made["attempts"].segments
    return [
        (f, int(a), None if b is None or b != b else int(b), int(n))  # noqa: PLR0124
        for f, a, b, n in zip(segments["file"], segments["first_line"], segments["last_line"], segments["attempt"], strict=True)
    ]


def attempts_of(made: Any, kind: str = "step") -> list[int | None]:
    """The attempt of each row of a kind, in order of the event table."""
    rows = made["rows"]
    return [a for k, a in zip(rows.column("kind").to_pylist(), rows.column("attempt").to_pylist(), strict=True) if k == kind]


def test_a_log_without_a_restart_is_one_attempt() -> None:
    made = tables([start(), start("engine"), start("engine"), step(1), step(2), step(3)])
    assert made["attempts"].count == 1
    assert attempts_of(made) == [0, 0, 0]
    assert made["chosen"] == 0


def test_a_launcher_line_after_work_begins_an_attempt() -> None:
    made = tables([start(), step(10), step(20), start(), step(10), start(), step(20), step(30)])
    assert pieces(made) == [("train.log", 0, 4, 0), ("train.log", 4, 6, 1), ("train.log", 6, None, 2)]
    assert attempts_of(made) == [0, 0, 1, 2, 2]


def test_a_node_that_ssh_does_not_reach_ends_no_attempt() -> None:
    """The launchers of the other nodes start after it; a launcher that is called again is the next start."""
    refused = {"kind": "end", "name": "exit-code", "value": 255.0}
    assert tables([start(), refused, start("node"), step(1)])["attempts"].count == 1
    assert tables([start(), refused, start(), start("node"), step(1)])["attempts"].count == 2
    assert tables([start(), {**refused, "value": 1.0}, start("node"), step(1)])["attempts"].count == 2


def test_every_rank_s_engine_line_begins_no_attempt_of_its_own() -> None:
    """Four processes print the engine's line; only after steps, or an end, does it mean a new start."""
    first = [start(), *(start("engine") for _ in range(4)), step(1), step(2)]
    made = tables([*first, start("engine"), start("engine"), start("engine"), step(3)])
    assert made["attempts"].count == 2
    assert attempts_of(made) == [0, 0, 1]


def test_messages_before_the_engine_are_no_work() -> None:
    """A warning between the launcher's line and the engine's line, and between two engines' lines."""
    made = tables([start(), {"kind": "error", "name": "level"}, start("engine"), {"kind": "error", "name": "level"}, start("engine"), step(1)])
    assert made["attempts"].count == 1


def test_a_crash_before_any_step_ends_an_attempt() -> None:
    made = tables([start(), {"kind": "error", "name": "python-exception"}, {"kind": "end", "name": "exit-code", "value": 1.0}, start(), step(1)])
    assert made["attempts"].count == 2
    assert made["chosen"] == 1


def test_a_traceback_before_the_launcher_is_no_start() -> None:
    """The job script tries an import first, which fails, and starts the job all the same."""
    made = tables([{"kind": "error", "name": "python-exception"}, start(), start("node"), step(1), step(2)])
    assert made["attempts"].count == 1


def test_a_step_number_that_goes_back_begins_an_attempt() -> None:
    made = tables([step(10), step(20), step(30), step(20), step(30)])
    assert pieces(made) == [("train.log", 0, 4, 0), ("train.log", 4, None, 1)]


def test_the_same_step_twice_begins_none() -> None:
    """A step line of every rank, and two kinds of step lines side by side."""
    made = tables([step(1), step(1), step(2), step(2), step(3, name="megatron"), step(3)])
    assert made["attempts"].count == 1


def test_two_kinds_of_step_lines_count_apart() -> None:
    """DeepSpeed prints step 10 after Megatron's iteration 10 was printed, and Megatron's evaluation repeats no number."""
    made = tables([step(10, name="megatron"), step(9), step(20, name="megatron"), step(19)])
    assert made["attempts"].count == 1


def test_per_rank_files_with_times_are_joined_by_time() -> None:
    """Two starts, three files: the console holds both, each start's rank files stand alone. The launcher prints a stamped line of its
    own (the accelerator it found) before the line that tells the new start: a quarter of an hour after all else, it is of the new one.
    """
    console = [at(0), {**at(2), **start()}, step(10), at(60), at(998), {**at(1000), **start()}, step(10), at(1060)]
    first = [at(4), step(10), at(55)]
    second = [at(1004), step(10), at(1055)]
    rows = [
        {**row, "file": file, "line": line}
        for file, lines in (("console.log", console), ("a/rank0.log", first), ("b/rank0.log", second))
        for line, row in enumerate(lines, 1)
    ]
    made = tables(rows)
    assert made["attempts"].count == 2
    by_file = {(f, first): n for f, first, _, n in pieces(made)}
    assert by_file == {("console.log", 0): 0, ("console.log", 5): 1, ("a/rank0.log", 0): 0, ("b/rank0.log", 0): 1}


def test_stamps_in_names_tell_starts_apart() -> None:
    """deepspeed --enable_each_rank_log: `<yyyymmddhhmmss>_rank<k>.log`, one set a start, and no time in any line."""
    files = [f"logs/20240305{clock}_rank{k}.log" for clock in ("140210", "151000") for k in (0, 1)]
    made = tables([{**step(n), "file": f, "line": n} for f in files for n in (1, 2)])
    assert made["attempts"].count == 2
    assert [n for *_, n in pieces(made)] == [0, 0, 1, 1]


def test_stamps_in_names_a_few_seconds_apart_are_one_start() -> None:
    """The launchers of two nodes stamp their own second."""
    files = ["logs/20240305140210_rank0.log", "logs/20240305140213_rank4.log"]
    made = tables([{**step(n), "file": f, "line": n} for f in files for n in (1, 2)])
    assert made["attempts"].count == 1


@pytest.mark.parametrize("restarts", [1, 2, 3])
def test_torchrun_s_folders_name_the_attempt(restarts: int) -> None:
    files = [f"run/attempt_{a}/{k}/stdout.log" for a in range(restarts + 1) for k in (0, 1)]
    made = tables([{**step(1), "file": f, "line": 1} for f in files])
    assert made["attempts"].count == restarts + 1
    assert [n for *_, n in pieces(made)] == [a for a in range(restarts + 1) for _ in (0, 1)]


def test_a_start_on_two_nodes_is_one_attempt() -> None:
    """Both launchers print within a minute of one another into files of their own."""
    rows = [
        *[
            at(0, file="node-0.log", line=1),
            start(file="node-0.log", line=2),
            start("node", file="node-0.log", line=3),
            step(1, file="node-0.log", line=4),
        ],
        *[at(900, file="node-0.log", line=5)],
        *[at(40, file="node-1.log", line=1), start("node", file="node-1.log", line=2), at(890, file="node-1.log", line=3)],
    ]
    assert tables(rows)["attempts"].count == 1


def test_a_file_of_the_first_start_alone_stays_there() -> None:
    """Rank 3 died in the first start and its file ends; the console goes on."""
    rows = [
        *[at(0, line=1), start(line=2), step(1, line=3), at(100, line=4), at(1000, line=5), start(line=6), step(1, line=7), at(1100, line=8)],
        *[
            at(3, file="rank3.log", line=1),
            {"kind": "error", "name": "python-exception", "file": "rank3.log", "line": 2},
            at(90, file="rank3.log", line=3),
        ],
    ]
    made = tables(rows)
    assert {n for f, _, _, n in pieces(made) if f == "rank3.log"} == {0}


def test_without_times_the_last_of_many_files_counts_its_own_pieces() -> None:
    """No stamps at all: each file by its own restarts."""
    rows = [
        *[{**step(n), "file": "rank0.log", "line": i} for i, n in enumerate((1, 2, 1, 2), 1)],
        *[{**step(n), "file": "rank1.log", "line": i} for i, n in enumerate((1, 2, 1, 2), 1)],
    ]
    made = tables(rows)
    assert made["attempts"].count == 2
    assert [n for *_, n in pieces(made)] == [0, 1, 0, 1]


def test_the_last_attempt_that_trained_is_chosen() -> None:
    """The third start died before any step: figures speak of the second."""
    rows = [start(), step(1), start(), step(1), step(2), start(), {"kind": "error", "name": "python-exception"}]
    made = tables(rows)
    assert made["attempts"].count == 3
    assert made["chosen"] == 1
    assert [s for s, k in zip(made["here"].column("step").to_pylist(), made["here"].column("kind").to_pylist(), strict=True) if k == "step"] == [1, 2]


def test_a_wanted_attempt_is_taken() -> None:
    made = tables([start(), step(1), start(), step(1), step(2)], attempt=0)
    assert made["chosen"] == 0
    assert made["here"].column("step").to_pylist() == [None, 1]


def test_rows_of_configurations_and_traces_belong_to_no_attempt() -> None:
    rows = [start(), step(1), start(), step(1), {"kind": "fact", "name": "config.x", "value": 1.0, "file": "ds_config.json"}]
    inputs = [Input("train.log", "log", 1), Input("ds_config.json", "config", 1)]
    made = tables(rows, inputs)
    assert made["rows"].column("attempt").to_pylist() == [0, 0, 1, 1, None]
    assert made["here"].column("file").to_pylist() == ["train.log", "train.log", "ds_config.json"]


def test_nothing_at_all_is_one_attempt() -> None:
    made = tables([], [])
    assert made["attempts"].count == 1
    assert made["chosen"] == 0
    assert made["endings"][0].status == "incomplete"


# ---- what a shell traces, and starts without a launcher


def test_the_shell_s_trace_of_a_command_belongs_to_the_start_that_follows() -> None:
    """`+ deepspeed …` stands some lines before the launcher's first: the arguments are the new start's."""
    rows = [start("shell", line=1), start(line=3), step(1, line=4), start("shell", line=7), start(line=9)]
    made = tables(rows)
    assert made["attempts"].segments["first_line"].tolist() == [0, 7]


def test_a_shell_s_trace_alone_is_no_start() -> None:
    """The script traces a second command, of which nothing else was written."""
    assert tables([start(line=1), step(1, line=2), start("shell", line=3), step(2, line=4), step(3, line=5)])["attempts"].count == 1


def test_a_trace_before_work_is_no_part_of_a_later_start() -> None:
    made = tables([start("shell", line=1), start(line=2), start("shell", line=3), step(1, line=4), start(line=6), step(1, line=7)])
    assert made["attempts"].segments["first_line"].tolist() == [0, 6]


def test_arguments_that_are_dumped_again_begin_an_attempt(tmp_path: Path) -> None:
    """Megatron without any launcher's line; the second start goes on where the first one's checkpoint was."""
    arguments = "------------------------ arguments ------------------------\n  micro_batch_size ................................ 4\n-------------------- end of arguments ---------------------\n"

    def iterations(first: int, last: int) -> str:
        return "".join(
            f" iteration {n:8}/ 1000 | elapsed time per iteration (ms): 100.0 | learning rate: 1.0E-04 | lm loss: 9.0E+00 |\n"
            for n in range(first, last + 1)
        )

    (tmp_path / "train.log").write_text(arguments + iterations(1, 5) + arguments + iterations(6, 8) + arguments + iterations(7, 9))
    found = diagnose(read(tmp_path)).run["attempts"]
    assert [(a["first_step"], a["last_step"]) for a in found] == [(1, 5), (6, 8), (7, 9)]


def test_a_start_after_all_processes_of_the_other_file_have_ended() -> None:
    """Six seconds later, in a file of its own; the logs of two nodes of one start, where no process has ended yet, stay together."""
    first = [at(0) | start(line=1), step(1, line=2), at(20) | {"kind": "end", "name": "exit-code", "value": -9.0, "line": 3}]
    second = [at(26) | start(line=1), step(1, line=2), at(50, line=3)]
    made = tables([*({**row, "file": "a.log"} for row in first), *({**row, "file": "b.log"} for row in second)])
    assert made["attempts"].count == 2
    other_node = [at(6) | start(line=1), step(1, line=2), at(50, line=3)]
    made = tables([*({**row, "file": "a.log"} for row in first), *({**row, "file": "b.log"} for row in other_node)])
    assert made["attempts"].count == 1


def test_what_no_attempt_changes_is_computed_once() -> None:
    """Eighty starts would else be looked at eighty times eighty times."""
    whole = tables([start(), step(1), start(), step(1)])
    first, second = whole.of_attempt(0), whole.of_attempt(1)
    for name in ("attempts", "rows", "endings"):
        assert first[name] is second[name] is whole[name]
    assert first["here"] is not second["here"]
    assert (first["chosen"], second["chosen"]) == (0, 1)


def test_ranks_that_print_the_same_steps_go_forward_each_by_itself() -> None:
    """Rank 7's line of step 10 comes behind rank 0's of step 20; a step that goes back on one rank is a new attempt."""
    order = [(0, 10), (0, 20), (7, 10), (7, 20), (0, 30), (7, 30)]
    rows = [step(n, name="torchtitan", rank=rank) for rank, n in order]
    assert tables(rows)["attempts"].count == 1
    assert tables([*rows, step(21, name="torchtitan", rank=0), step(21, name="torchtitan", rank=7)])["attempts"].count == 2


def test_what_one_agent_starts_again_has_the_shape_that_was_stated_before() -> None:
    def shape(start: str, ranks: int) -> tuple[int | None, int | None]:
        said = [{"kind": "error", "name": "python-exception", "rank": rank, "text": "x"} for rank in range(ranks)]
        found = tables([*topology_map(2, 2), step(1), {"kind": "start", "name": start}, step(2), *said])
        assert found["attempts"].count == 2
        return found["topology"].pp, found["topology"].stage_of(3)

    assert shape("restart", 4) == (2, 1)
    assert shape("restart", 3) == (None, None), "an agent may go on with fewer"
    assert shape("launcher", 4) == (None, None), "another command may cut the job differently"


def test_the_start_up_before_a_step_that_goes_back_belongs_to_the_new_attempt() -> None:
    """A job that a scheduler puts into its queue again writes into the same file, without a launcher's line."""
    said = [
        at(930, kind="comm_init", name="cdb"),
        at(931, kind="fact", name="backend", text="nccl"),
        at(931, kind="checkpoint", name="loading", step=10),
    ]
    cancelled = at(30, kind="end", name="slurm-requeue")
    made = tables([start("engine"), at(0, **step(10)), at(20, **step(20)), cancelled, *said, at(940, **step(12)), at(960, **step(22))])
    assert pieces(made) == [("train.log", 0, 5, 0), ("train.log", 5, None, 1)]
    assert attempts_of(made, "comm_init") == [1]
    segments = made["attempts"].segments
    assert list((segments["end_ns"] - segments["begin_ns"]) / SECOND) == [30, 30]


def test_what_is_said_before_a_launcher_s_line_stays_with_the_attempt_before() -> None:
    """A fact that a step line does not follow is not the start-up of what a launcher begins."""
    made = tables([start(), step(10), step(20), {"kind": "fact", "name": "version.torch", "text": "2.4.0"}, start(), step(10)])
    assert pieces(made) == [("train.log", 0, 5, 0), ("train.log", 5, None, 1)]


def test_a_word_about_memory_before_a_step_that_goes_back_is_no_start_up() -> None:
    made = tables([start(), step(10), step(20), {"kind": "fact", "name": "theory.parameters", "value": 1e9}, step(12)])
    assert pieces(made)[1][1] == 5


def test_both_lines_of_the_step_that_goes_back_belong_to_the_new_attempt() -> None:
    """`step=12, skipped=0, …` stands above `steps: 12 loss: …`."""
    progress = [{"kind": "progress", "name": "deepspeed", "step": n} for n in (10, 20, 12)]
    made = tables([start(), progress[0], step(10), progress[1], step(20), progress[2], step(12)])
    assert pieces(made) == [("train.log", 0, 6, 0), ("train.log", 6, None, 1)]
