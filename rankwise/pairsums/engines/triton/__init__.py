"""The Triton engine: fused kernels for NVIDIA and AMD GPUs, without a host sync, with gradients equal to the bit.

`engine` launches the kernels. `positives` lists the positives; `histogram` and `taylor` sum sigmoids over the
negatives, `intervals` steps; `pairs` has the losses' formulas; `distances` the distances; `arguments` what all take.
"""

from rankwise.pairsums.engines.triton.engine import TritonEngine

__all__ = ["TritonEngine"]
