"""The Triton engine: fused kernels for NVIDIA and AMD GPUs, without a host sync, deterministic to the bit.

`engine` launches the kernels, `positives` compacts the positives into a list. `histogram` and `taylor` sum sigmoids
over the negatives, `intervals` sums steps. `formula` has the formulas of the losses, `distances` the distances, and
`arguments` the tuples that kernels take.
"""

from rankwise.pairsums.engines.triton.engine import TritonEngine

__all__ = ["TritonEngine"]
