"""Where agentkit keeps what it has downloaded or built: the one place that reads the environment for it.

Job: the root of the cache. Order: an argument, then the variable AGENTKIT_CACHE, then the platform's user cache
(`~/.cache/agentkit` on Linux, `~/Library/Caches/agentkit` on macOS, `%LOCALAPPDATA%\\agentkit\\Cache` on Windows).
Knows nothing of what is stored there.
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "AGENTKIT_CACHE"


def cache_root(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The cache's root folder (it need not exist yet). `cache_dir` wins over the variable AGENTKIT_CACHE."""
    chosen = cache_dir if cache_dir is not None else os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("agentkit", appauthor=False)
