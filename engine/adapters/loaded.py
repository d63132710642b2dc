"""The adapters of one engine by name: loaded, replaced, unloaded and chosen, from any thread.

A request holds the adapter that it chose, so one that is replaced or unloaded meanwhile serves it to its end. Knows nothing of
scheduling or of how a forward uses an adapter.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from agentkit.engine.adapters.adapter import Adapter, AdapterForm, AdapterUse, LowRank, Place
from agentkit.engine.adapters.files import folder_of, read_adapter
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.loader import LoadedModel
from agentkit.engine.models.progress import Progress
from agentkit.errors import AdapterError, AdapterNotFound, InvalidOption, did_you_mean

__all__ = ["Adapters"]


class Adapters:
    """target: the model that they change.   device: where files are read to.   form: makes of the changes of all places what the engine computes with."""

    def __init__(
        self, target: LoadedModel, device: torch.device, form: Callable[[Mapping[Place, LowRank]], AdapterForm], progress: Progress | None = None
    ) -> None:
        self._target, self._device, self._form, self._progress = target, device, form, progress
        self._lock = threading.Lock()
        self._loaded: dict[str, Adapter] = {}
        self._loads = 0

    @property
    def loaded(self) -> Mapping[str, Adapter]:
        """By name, as they are now."""
        with self._lock:
            return dict(self._loaded)

    def load(self, name: str, source: str | os.PathLike[str]) -> Adapter:
        """Reads an adapter and makes it choosable, in place of one of the same name. Raises AdapterError, AdapterNotFound, TypeError."""
        if not isinstance(name, str):
            raise TypeError(f"the name of an adapter must be text, not {name!r}")
        if not name:
            raise AdapterError("the name of an adapter is empty; give it one that requests can choose it by")
        config = self._config(name)
        rank, places = read_adapter(folder_of(source, self._progress), config, self._target.model.dtype, self._device)
        form = self._form(places)
        with self._lock:
            self._loads += 1
            adapter = self._loaded[name] = Adapter(name, self._loads, os.fspath(source), rank, form)
        return adapter

    def load_all(self, sources: Any) -> None:
        """What an engine is made with: a mapping of names to sources, or None. Raises InvalidOption for anything else, and what `load` raises."""
        if sources is not None and not isinstance(sources, Mapping):
            raise InvalidOption(f"adapters must map names to folders or hub repositories, such as {{'support': 'adapters/support'}}, not be {sources!r}")
        for name, source in (sources or {}).items():
            self.load(name, source)

    def unload(self, name: str) -> None:
        """No request can choose it any more; those that have go on. Raises AdapterNotFound."""
        with self._lock:
            if self._loaded.pop(name, None) is None:
                raise self._unknown(name)

    def use(self, name: str | None, scale: float) -> AdapterUse | None:
        """What a request with these options uses; None: the base model alone. Raises AdapterNotFound."""
        if name is None:
            return None
        with self._lock:
            adapter = self._loaded.get(name)
            if adapter is None:
                raise self._unknown(name)
        return AdapterUse(adapter, float(scale)) if scale else None

    def _unknown(self, name: str) -> AdapterNotFound:
        if not self._loaded:
            return AdapterNotFound(f"no adapter {name!r} is loaded, nor any other; load it with engine.load_adapter({name!r}, path)")
        return AdapterNotFound(
            f"no adapter {name!r} is loaded.{did_you_mean(str(name), self._loaded)} Loaded are {', '.join(map(repr, self._loaded))}; "
            f"load others with engine.load_adapter(name, path)"
        )

    def _config(self, name: str) -> ModelConfig:
        """The shapes of the model. Raises AdapterError where it cannot have adapters."""
        model = self._target.model
        if not isinstance(model, Decoder):
            raise AdapterError(f"the adapter {name!r}: {self._target.name} runs through transformers, and only the native decoder takes adapters")
        return model.config
