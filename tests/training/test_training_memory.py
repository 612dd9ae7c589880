"""Training on a CPU reuses the memory of the step before."""

import platform
import subprocess
import sys

import pytest

#: Prints how many pages the system hands out for arrays of 2 MiB that are allocated and freed again and again.
PROGRAM = """
import resource, sys
import numpy as np
from rankwise.training.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step():
    return len([np.ones(2**18) for _ in range(20)])
step()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(mode):
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="set for glibc only")
def test_freed_memory_is_allocated_again_without_new_pages():
    assert pages("keep") < pages("default") / 10
