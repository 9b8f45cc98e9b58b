"""The option of Megatron-LM that gives neighbouring ranks to neighbouring stages: ranks count tensor, context, pipeline, data instead of tensor, context, data, pipeline.

  use_tp_pp_dp_mapping ............................ True        (the table of arguments)
  use_tp_pp_dp_mapping: true                                    (a configuration)
torchrun pretrain_gpt.py --use-tp-pp-dp-mapping …
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Records, Rows, lines


@lines(
    "rank-order",
    mark=("use_tp_pp_dp_mapping", "--use-tp-pp-dp-mapping"),
    pattern=r"\buse_tp_pp_dp_mapping['\"]?(?: \.+ |: |=| = )['\"]?(?P<value>[Tt]rue|[Ff]alse)\b|(?:^|[\s'\"])(?P<given>--use-tp-pp-dp-mapping)(?:[\s'\",\]\\]|$)",
)
def order(found: Records) -> Iterator[Rows]:
    """Give the option as an argument: 1 and `True`, or 0 and `False`."""
    yes = pc.or_(pc.is_valid(found["given"]), pc.fill_null(pc.equal(pc.utf8_lower(found["value"]), "true"), False))
    yield found.rows("fact", "args.use_tp_pp_dp_mapping", value=pc.cast(yes, pa.float64()), text=pc.if_else(yes, "True", "False"))
