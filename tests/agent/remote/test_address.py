"""Where requests go, and that keys show nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from agentkit import Agent
from agentkit.errors import InvalidOption
from agentkit.remote import RemoteModel
from agentkit.remote.address import OPENAI, resolve

KEY = "sk-very-secret-1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def test_openai_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption, match="needs a key: set OPENAI_API_KEY, or pass api_key="):
        Agent("openai:gpt-4.1-mini")
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    address = resolve("openai:gpt-4.1-mini")
    assert (address.base, address.model, address.is_openai) == (OPENAI, "gpt-4.1-mini", True)
    assert address.key is not None
    assert address.key.get_secret_value() == KEY
    given = resolve("openai:gpt-4.1-mini", None, "sk-other").key
    assert given is not None
    assert given.get_secret_value() == "sk-other"
    assert Agent("openai:gpt-4.1-mini").model.name == "gpt-4.1-mini"


def test_another_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:9/v1/")
    address = resolve("openai:mine")
    assert (address.base, address.model, address.key, address.is_openai) == ("http://localhost:9/v1", "mine", None, False)
    assert resolve("https://mine.openai.azure.com/openai/v1").is_openai
    for lookalike in ("https://api.openai.com.evil.example/v1", "https://evilopenai.com/v1"):
        assert not resolve(lookalike).is_openai


def test_the_environments_key_goes_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert resolve("http://localhost:8000/v1", "m").key is None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://", "is no address of a server"),
        ("http://host:port/v1", "is no address"),
        ("http://me:pass@host/v1", "holds a user or password"),
        ("http://host/v1?x=1", "cannot be extended"),
        ("http://host/v1/chat/completions", "give the API's: 'http://host/v1'"),
        ("openai:", "has to name the model itself"),
    ],
)
def test_addresses_that_cannot_be_used(target: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        Agent(target)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("key", ["a b", "schlüssel", "a\nb", "", 3])
def test_keys_that_cannot_be_used(key: Any) -> None:
    with pytest.raises(InvalidOption, match="api_key") as caught:
        RemoteModel("http://host/v1", "m", api_key=key)
    assert not isinstance(key, str) or len(key) < 4 or key not in str(caught.value)


def test_a_key_shows_nowhere() -> None:
    model = RemoteModel("http://host/v1", "m", api_key=KEY)
    agent = Agent("http://host/v1", model="m", api_key=KEY)
    assert KEY not in "".join(map(repr, (model, agent, vars(model), model.address, agent.model)))


def test_options() -> None:
    with pytest.raises(InvalidOption, match=r"server is 'vlm'. Did you mean 'vllm'\?"):
        Agent("http://host/v1", model="m", server="vlm")
    with pytest.raises(InvalidOption, match="extra_body has messages, stream"):
        RemoteModel("http://host/v1", "m", extra_body={"messages": [], "stream": False})
    with pytest.raises(InvalidOption, match="pass api_key="):
        RemoteModel("http://host/v1", "m", headers={"Authorization": "x"})
    with pytest.raises(InvalidOption, match="without line breaks"):
        RemoteModel("http://host/v1", "m", headers={"x": "a\r\nb"})
    with pytest.raises(InvalidOption, match="blanks at its ends") as caught:
        RemoteModel("http://host/v1", "m", headers={"api-key": f" {KEY}"})
    assert KEY not in str(caught.value)
    for name in ("", "a b", "a:b", "ä"):
        with pytest.raises(InvalidOption, match="is no name of a header"):
            RemoteModel("http://host/v1", "m", headers={name: "x"})
    for name in ("extra_body", "headers"):
        for value in ("x", 5, [("a", "b")], []):
            with pytest.raises(InvalidOption, match=f"{name} must be a dict, such as {{.*}}, or None, not {type(value).__name__}"):
                RemoteModel("http://host/v1", "m", **{name: value})
    with pytest.raises(InvalidOption, match="extra_body: 1 is no name of a field"):
        RemoteModel("http://host/v1", "m", extra_body={1: 2})
    wrong: tuple[Any, ...] = (None, 5, b"http://host/v1")
    for target in wrong:
        with pytest.raises(InvalidOption, match=f"target must be 'openai:MODEL' or the address of a server, such as .*, not {type(target).__name__}"):
            RemoteModel(target, "m")
    with pytest.raises(InvalidOption, match="read_timeout"):
        RemoteModel("http://host/v1", "m", read_timeout=0)
    with pytest.raises(InvalidOption, match="max_retries"):
        RemoteModel("http://host/v1", "m", max_retries=-1)
    with pytest.raises(InvalidOption, match="a server writes calls in its own way"):
        Agent("http://host/v1", model="m", protocol="hermes")
    with pytest.raises(InvalidOption, match="openai:gpt"):
        Agent("openai:gpt", model="m", api_key="k")
