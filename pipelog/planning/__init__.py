"""Before the job: whether its batch sizes multiply, what bubble it will have, and what other numbers of micro-batches and stages would cost."""
