"""How a process that works on large arrays gets its memory."""

import ctypes

import pyarrow as pa

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_KEPT_BYTES = 2**31 - 1
_TAKEN_AT_ONCE_BYTES = 64 * 1024 * 1024


def keep_freed_memory() -> None:
    """Use memory that was freed again instead of giving it back, in Arrow and NumPy alike.

    Audits make and free arrays of many megabytes all the time; getting each one's pages from the system anew took a
    quarter of their processor time. Where the C library is not glibc, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TOP_PAD, _TAKEN_AT_ONCE_BYTES)
        mallopt(_M_MMAP_MAX, 0)
        pa.set_memory_pool(pa.system_memory_pool())  # type: ignore[attr-defined]  # the stubs lack both
