"""ds_config.json files: which files they are, and what they state, with the line of each value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelog.reading.configs import is_config, read_config
from pipelog.reading.files import Source

CONFIGS = {
    "plain": '{"train_batch_size": 16, "steps_per_print": 9999999}',
    "only shared keys": '{"train_batch_size": 8, "gradient_accumulation_steps": 2, "optimizer": {"type": "Adam"}}',
    "precision": '{"fp16": {"enabled": "auto"}}',
    "pipeline": '{"pipeline": {"activation_checkpoint_interval": 1}}',
    "comments": '// by hand\n/* two\nlines */ # three\n{\n  // micro\n  "train_micro_batch_size_per_gpu": 4,\n}',
    "cut off": '{\n  "zero_optimization": {\n    "stage": 1,\n',
    "byte order mark": '\ufeff{"zero_optimization": {"stage": 1}}',
    "gpt-neox": '{\n  "pipe-parallel-size": 2, # two\n  "train_micro_batch_size_per_gpu": 4\n}',
}
OTHERS = {
    "nothing": "",
    "text": "steps: 3",
    "list": "[1, 2]",
    "empty object": "{}",
    "HF trainer state": '{"best_metric": null, "train_batch_size": 8, "log_history": [{"loss": 2.0}]}',
    "HF arguments": '{"gradient_accumulation_steps": 2, "fp16": true, "bf16": false, "deepspeed": "ds.json"}',
    "HF model": '{"model_type": "gpt2", "n_layer": 12, "optimizer": "adam"}',
    "Megatron arguments": '{"pipeline_model_parallel_size": 4, "micro_batch_size": 2, "bf16": true, "optimizer": "adam"}',
    "trace": '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"name": "zero_optimization"}]}',
    "results of a benchmark": '{"steps_per_print": 5, "wall_clock_breakdown": true, "name": "x", "outcome": "ok", "links": [], "per_step": []}',
    "optimizer": '{"optimizer": "adam"}',
    "not at the top": '{"model": {"zero_optimization": {"stage": 1}}}',
}


def facts(folder: Path, text: str) -> tuple[dict[str, tuple[float | None, str, int]], list[tuple[int | None, str]]]:
    path = folder / "ds_config.json"
    path.write_text(text, encoding="utf-8")
    table, given = read_config(Source(path, "conf/ds_config.json", path.stat().st_size, 0))
    rows = table.to_pylist()
    assert {row["kind"] for row in rows} <= {"fact"}
    assert {row["file"] for row in rows} <= {"conf/ds_config.json"}
    assert (given.kind, given.events) == ("config", len(rows))
    return {r["name"].removeprefix("config."): (r["value"], r["text"], r["line"]) for r in rows}, [(s.line, s.why) for s in given.skipped]


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_is_known(text: str) -> None:
    assert is_config(text.encode())


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_other_files_are_none(text: str) -> None:
    assert not is_config(text.encode())


def test_a_long_file_is_known_by_its_beginning() -> None:
    assert is_config(('{\n  "zero_optimization": {"stage": 1},\n  "x": "' + "y" * 9000).encode()[:4096])
    assert is_config('{"zero_optimization": {"stage": 1}}'.encode("utf-16"))


def test_every_value_has_its_line(tmp_path: Path) -> None:
    text = """{
  // written by hand
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": 2.0, /* samples
  */ "gradient_accumulation_steps": 1.024000e+03,
  "fp16": {
    "enabled": false,
    "loss_scale": 0
  },
  "bfloat16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
  "wall_clock_breakdown": true,
}
"""
    found, skipped = facts(tmp_path, text)
    assert found == {
        "train_batch_size": (None, "auto", 3),
        "train_micro_batch_size_per_gpu": (2.0, "2.0", 4),
        "gradient_accumulation_steps": (1024.0, "1.024000e+03", 5),
        "fp16.enabled": (0.0, "false", 7),
        "fp16.loss_scale": (0.0, "0", 8),
        "bf16.enabled": (1.0, "true", 10),
        "optimizer.type": (None, "AdamW", 11),
        "optimizer.params.lr": (1e-4, "1e-4", 11),
        "optimizer.params.betas": (None, "[0.9, 0.95]", 11),
        "wall_clock_breakdown": (1.0, "true", 12),
    }
    assert skipped == []


def test_all_of_json_s_own_writing_is_read(tmp_path: Path) -> None:
    config = {
        "train_batch_size": 64,
        "zero_optimization": {"stage": 1, "overlap_comm": None},
        "name": 'a "b" \\ ü',
        "list": [],
        "deep": {"a": {"b": [{"c": 1}]}},
    }
    for indent in (None, 4):
        found, skipped = facts(tmp_path, json.dumps(config, indent=indent))
        assert {name: text for name, (_, text, _) in found.items()} == {
            "train_batch_size": "64",
            "zero_optimization.stage": "1",
            "zero_optimization.overlap_comm": "null",
            "name": 'a "b" \\ ü',
            "list": "[]",
            "deep.a.b.0.c": "1",
        }
        assert skipped == []


def test_what_is_broken_costs_only_itself(tmp_path: Path) -> None:
    text = '{\n  "train_batch_size" 64,\n  "steps_per_print": 10 @ rest of this line,\n  "fp16": {"enabled": true]\n  "gradient_clipping": 1.0\n  "pipeline": {'
    found, skipped = facts(tmp_path, text)
    assert found["steps_per_print"] == (10.0, "10", 3)
    assert found["fp16.enabled"] == (1.0, "true", 4)
    assert found["gradient_clipping"] == (1.0, "1.0", 5)
    assert {line for line, _ in skipped} >= {2, 3, 4, 6}
    assert "the configuration is not closed: it ends in the middle" in {why for _, why in skipped}
