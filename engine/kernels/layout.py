"""Sizes that kernels and their callers share. Knows nothing of either."""

from __future__ import annotations

PAGE = 32
"""Positions in a page of keys and values; position p of a sequence lies in slot pages[p // PAGE] * PAGE + p % PAGE."""

SCALE_BYTES = 2
"""Behind the 8-bit codes of a row of keys or values lies its scale, a bfloat16."""

FAR = 16384
"""Positions from which float32 no longer tells a rotary angle well: it is brought below a full turn in float64 first."""
