"""What went wrong at a server, as typed errors that say what to do, and whether to try again.

Input: status, headers and body of an answer, an error object inside a stream, or an exception of httpx. Keys are struck out of
whatever a server says. Knows nothing of when to retry.
"""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentkit.errors import RemoteError, RemoteProtocolError, RemoteRefused, RemoteTimeout, RemoteUnavailable
from agentkit.remote.address import Address
from agentkit.remote.chunks import CUT

if TYPE_CHECKING:
    import httpx

__all__ = ["may_pass", "of_exception", "of_object", "of_response", "quoted", "said"]

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # what may pass by itself
_LASTING = frozenset({"insufficient_quota", "billing_not_active", "billing_hard_limit_reached"})
_CONNECT = "connect_timeout"
_LONGEST = 600  # characters of a server's own words


def of_response(address: Address, status: int, headers: Mapping[str, str], body: str) -> RemoteError:
    """The error of an answer whose status is no success."""
    message, code = said(body)
    request_id = headers.get("x-request-id") or headers.get("request-id")
    details: dict[str, Any] = {
        "status": status,
        "code": code and quoted(address, code),
        "request_id": request_id and quoted(address, request_id),
        "retry_after": _retry_after(headers),
    }
    words = quoted(address, message).rstrip(" .")
    numbered = f" (request {details['request_id']})" if details["request_id"] else ""
    start = f"{address.base} answered {status}{numbered}" + (f": {words}" if words else "")
    if 300 <= status < 400:
        place = quoted(address, headers.get("location", "another address"))
        return RemoteRefused(f"{address.base} answered {status}, a redirect to {place}, which is not followed; give the address that it leads to", **details)
    passing = status in _PASSING or status >= 500
    if headers.get("x-should-retry") == "false" or code in _LASTING:
        passing = False
    if passing:
        return RemoteUnavailable(start, **details)
    return RemoteRefused(f"{start}. {_advice(address, status, code, words)}".rstrip(" "), **details)


def of_object(address: Address, error: Any, status: int | None = None) -> RemoteError:
    """An error that came inside a stream, after a status of success."""
    message, code = said(json.dumps({"error": error}))
    inner = error.get("code") if isinstance(error, dict) else None
    if isinstance(inner, int) and 400 <= inner < 600:
        status = inner
    words = f"{address.base} ended its stream with an error: {quoted(address, message) or 'it says no more'}"
    refused = status is not None and status < 500 and status not in _PASSING
    kind = RemoteRefused if refused or code in _LASTING else RemoteUnavailable
    return kind(words, status=status, code=code and quoted(address, code))


def of_exception(address: Address, error: httpx.HTTPError | httpx.InvalidURL) -> RemoteError:
    """The error of a request that got no answer, or whose answer broke off."""
    import httpx

    words = quoted(address, str(error)) or type(error).__name__
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return RemoteTimeout(f"no connection to {address.base} in time ({words}); is the server running there? connect_timeout= waits longer", code=_CONNECT)
    if isinstance(error, httpx.TimeoutException):
        return RemoteTimeout(f"{address.base} sent nothing for too long ({words}); read_timeout= waits longer")
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return RemoteUnavailable(f"no connection to {address.base}: {words}; is the server running there, and the address right?")
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return RemoteRefused(f"{address.base} is no address that can be asked: {words}; write one like 'http://localhost:8000/v1'")
    if isinstance(error, httpx.DecodingError):
        return RemoteProtocolError(f"{address.base} sent a body that cannot be decoded: {words}")
    return RemoteUnavailable(f"the connection to {address.base} broke: {words}")


def may_pass(error: RemoteError) -> bool:
    """Whether the same request may succeed a little later. A server that is merely slow is not asked the same again."""
    if isinstance(error, RemoteTimeout):
        return error.code == _CONNECT
    return isinstance(error, RemoteUnavailable) or error.code == CUT


def said(body: str) -> tuple[str, str | None]:
    """(message, code) of a body, in any of the shapes that servers use."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        page = body.lstrip()[:15].lower().startswith(("<!doctype", "<html"))
        return ("it sent a web page" if page else body.strip()), None
    inner = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    if not isinstance(inner, dict):
        return str(inner), None
    message = inner.get("message") or inner.get("detail") or inner.get("msg") or json.dumps(inner)
    code = inner.get("code") if isinstance(inner.get("code"), str) else inner.get("type")
    return (message if isinstance(message, str) else json.dumps(message)), code if isinstance(code, str) else None


def quoted(address: Address, text: str) -> str:
    """A server's words, cut to a length that can be read, without the key, which some servers repeat: no part of it is left where they are cut."""
    key = address.key.get_secret_value() if address.key is not None else ""
    return (text.replace(key, "***") if key else text)[:_LONGEST]


def _advice(address: Address, status: int, code: str | None, words: str) -> str:
    lower = f"{code or ''} {words}".lower()
    if status in (401, 403):
        source = "OPENAI_API_KEY or api_key=" if address.is_openai else "api_key="
        return f"Check the key in {source}" + ("" if address.key is not None else ": none was sent")
    if status == 404:
        asked = f"the model {address.model!r}" if address.model else "the model"
        hint = "" if address.base.endswith(("/v1", "/v1beta/openai")) else f"; most servers have their API at {address.base}/v1"
        return f"Check the address and {asked}{hint}"
    if code in _LASTING:
        return "The account has no credit left; waiting does not help"
    if "max_tokens" in lower or "max_completion_tokens" in lower or ("context" in lower and ("length" in lower or "exceed" in lower)):
        return "Shorten the conversation, or lower max_tokens"
    if "enable-auto-tool-choice" in lower:
        return "Start vLLM with --enable-auto-tool-choice and --tool-call-parser"
    if "temperature" in lower or "top_p" in lower:
        return "Models that reason take no sampling options: pass temperature=1.0 (and top_p=1.0) to the Agent"
    if status == 413:
        return "Shorten the conversation"
    return ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from retry-after-ms, or Retry-After as a number or a date (RFC 9110, 10.2.3); None if neither says any."""
    milliseconds, value = _number(headers.get("retry-after-ms", "")), headers.get("retry-after", "")
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None
