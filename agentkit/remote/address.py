"""Where a server is and which key it gets: the only place that reads OPENAI_API_KEY and OPENAI_BASE_URL.

Input: "openai:MODEL", or the address of an API. Output: an Address whose key shows in no repr. Knows nothing of requests.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr

from agentkit.errors import InvalidOption

__all__ = ["OPENAI", "Address", "is_remote", "resolve"]

OPENAI = "https://api.openai.com/v1"
_PREFIX = "openai:"
_SCHEMES = ("http://", "https://")
_ENDPOINT = "/chat/completions"


@dataclass(frozen=True)
class Address:
    """base: address of the API, without a slash at its end. model: its name there; None: the only one that is served."""

    base: str
    model: str | None
    key: SecretStr | None = None

    @property
    def is_openai(self) -> bool:
        """OpenAI's own servers, or those of Azure with the same API."""
        return (urlsplit(self.base).hostname or "").endswith((".openai.com", ".openai.azure.com"))


def is_remote(target: str) -> bool:
    """Whether a model's name means a server."""
    return target.lower().startswith((*_SCHEMES, _PREFIX))


def resolve(target: Any, model: Any = None, api_key: Any = None) -> Address:
    """The server that `target` means.

    Args:
        target: "openai:MODEL" (OpenAI, or the address in OPENAI_BASE_URL), or "http://host:8000/v1".
        model: its name on the server, where target is an address.
        api_key: None: OPENAI_API_KEY for "openai:MODEL"; no key for an address, whatever the environment holds.

    Raises:
        InvalidOption: the address or key cannot be used, or the key is missing.
    """
    if not isinstance(target, str):
        raise InvalidOption(f"target must be 'openai:MODEL' or the address of a server, such as 'http://localhost:8000/v1', not {type(target).__name__}")
    for name, value in (("model", model), ("api_key", api_key)):
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise InvalidOption(f"{name} must be text, or None, not {'an empty text' if isinstance(value, str) else type(value).__name__}")
    if not target.lower().startswith(_PREFIX):
        return Address(_base(target), model, _key(api_key, "api_key"))
    named = target[len(_PREFIX) :]
    if not named or model is not None:
        raise InvalidOption(f"{target!r} has to name the model itself, such as 'openai:gpt-4.1-mini', without model=")
    base = _base(os.environ.get("OPENAI_BASE_URL") or OPENAI)
    key = _key(api_key, "api_key") or _key(os.environ.get("OPENAI_API_KEY"), "OPENAI_API_KEY")
    address = Address(base, named, key)
    if key is None and address.is_openai:
        raise InvalidOption(f"{target!r} needs a key: set OPENAI_API_KEY, or pass api_key=")
    return address


def _key(key: str | None, name: str) -> SecretStr | None:
    key = (key or "").strip()
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidOption(f"{name} has characters that no HTTP header can hold (a line break, a blank, a letter that is not ASCII); copy it again")
    return SecretStr(key)


def _base(target: str) -> str:
    base = target.strip().rstrip("/")
    try:
        parts: SplitResult = urlsplit(base)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidOption(f"{target!r} is no address: {error}; write one like 'http://localhost:8000/v1'") from error
    if parts.username is not None or parts.password is not None:
        raise InvalidOption("the address of a server holds a user or password; write it without, and pass api_key= instead")
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise InvalidOption(f"{target!r} is no address of a server; write one like 'http://localhost:8000/v1'")
    if parts.query or parts.fragment:
        raise InvalidOption(f"{target!r}: an address with '?' or '#' cannot be extended; give the part before it")
    if base.endswith(_ENDPOINT):
        raise InvalidOption(f"{target!r} is the address of one call; give the API's: {base.removesuffix(_ENDPOINT)!r}")
    return base
