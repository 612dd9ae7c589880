"""Whether bfloat16 convolutions run on this CPU.

Some virtual machines report AMX but do not support it: the first backward pass in bfloat16 then crashes with an illegal
instruction. oneDNN, which runs these convolutions for torch, can be told not to use AMX.
"""

from __future__ import annotations

import os
import subprocess
import sys

#: The environment variable with the newest instruction set that oneDNN may use, read on its first run in a process.
VARIABLE = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_BF16"

PROBE = """
import torch
convolution = torch.nn.Conv2d(16, 16, 3, stride=2, padding=1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    convolution(torch.ones(2, 16, 16, 16, requires_grad=True)).sum().backward()
"""


class Bf16Error(RuntimeError):
    """bfloat16 does not run on this CPU."""


def enable_bf16(probe: str = PROBE) -> str | None:
    """Makes sure that bfloat16 convolutions run on this CPU; call it before torch runs any convolution.

    Runs a small convolution, forward and backward, in a separate process. If that process dies, oneDNN is told not to
    use AMX, in this process and its children, unless the user has already set the variable. Returns a message about
    what was changed, or None.

    Raises:
        Bf16Error: If the probe crashes either way.
    """
    died = _run(probe, dict(os.environ))
    if died is None:
        return None
    given = os.environ.get(VARIABLE)
    if given is None and _run(probe, {**os.environ, VARIABLE: WITHOUT_AMX}) is None:
        os.environ[VARIABLE] = WITHOUT_AMX
        return f"bf16 convolutions fail on this CPU ({died}): setting {VARIABLE}={WITHOUT_AMX}, with which they run"
    setting = f"with {VARIABLE}={given}" if given else f"with and without {VARIABLE}={WITHOUT_AMX}"
    advice = f"unset {VARIABLE} or set it to {WITHOUT_AMX}" if given else f"set {VARIABLE}=AVX2"
    raise Bf16Error(f"bf16 convolutions fail on this CPU {setting} ({died}): use --precision 32, or {advice}")


def _run(probe: str, environment: dict[str, str]) -> str | None:
    """Runs code in a separate process; returns None on success, otherwise how it ended."""
    try:
        done = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "no answer after 120 seconds"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}"
    return (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
