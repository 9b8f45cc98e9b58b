"""What Megatron's rerun state machine (Megatron-LM core_v0.10.0 on) says of a result that it did not expect: nan, inf, a spike.

    ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #3 invocation #2 (message='found NaN in local grad norm …')

Its verdict on the reruns (`Rank 3, node n, device 3, iteration #3: First rerun: …`) is a line of its logger and read as such.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.parsing import Records, Rows, lines


@lines(
    "megatron-rerun",
    mark="Unexpected result ",
    pattern=(
        r"^(?:\S.*[\]: ] ?)?Unexpected result (?:tensor\()?(?P<result>[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))[^ ]*(?: device=\S+)? on rank (?P<rank>\d{1,9})"
        r" at iteration #(?P<step>\d{1,9}) invocation #\d{1,9}"
    ),
)
def rerun(found: Records) -> Iterator[Rows]:
    """Give the rank and the iteration, and the result itself (value)."""
    yield found.rows("error", "megatron-rerun", rank=found.int("rank"), step=found.int("step"), value=found.float("result"), text=found["line"])
