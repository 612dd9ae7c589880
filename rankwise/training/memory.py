"""Memory of training on a CPU."""

from __future__ import annotations

import ctypes
import sys

#: Parameters of glibc's ``mallopt``, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: The largest values that every version accepts.
_LARGEST_TRIM, _LARGEST_MMAP = 2**31 - 1, 32 * 2**20


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory instead of returning it to the system; whether it could be set.

    A training step frees the activations that the next one allocates again. By default, glibc may return them in every
    step, depending on the sizes freed before, and the system then hands out new pages filled with zeros.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP) and mallopt(_M_TRIM_THRESHOLD, _LARGEST_TRIM))
