"""The official harnesses: which package of which version, what it needs, and how one sees that it is there.

Only what the categories that are run import is asked for: BFCL's own list has torch and a search engine's client, which
multi-turn cases never touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Harness:
    """What an environment is made of."""

    name: str
    package: str
    version: str
    requirements: tuple[str, ...]
    """Beside the package, which is installed without its own."""
    imports: str
    """The modules that must be importable in the end."""
    source: str | None = None
    """Where it is in no package index: what a checkout of it is called. `version` is how that begins then."""
    commit: str | None = None
    """Where it is no package at all: the commit whose files are taken from a checkout, as they are."""
    stubs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Modules that it imports at its start and that nothing which is run calls, with the names that it asks them for:
    empty ones stand in their place."""
    bare: tuple[str, ...] = ()
    """Packages that are installed without their own, too."""


_OF_BFCL: Final = (
    *("requests", "tqdm", "pandas", "pydantic", "python-dotenv", "tabulate", "typer", "openai"),
    *("tree_sitter==0.21.3", "tree-sitter-java==0.21.0", "tree-sitter-javascript==0.21.4", "tenacity", "overrides"),
    *("datamodel-code-generator==0.25.7", "mpmath==1.3.0", "filelock==3.20.0"),
    # Its table of models imports every vendor's client.
    *("anthropic", "mistralai==1.7.0", "cohere==5.18.0", "google-genai", "writer-sdk", "boto3", "qwen-agent"),
    "soundfile",  # which qwen-agent imports and does not declare
)
BFCL: Final = Harness(
    name="bfcl",
    package="bfcl-eval",
    version="2026.3.23",
    requirements=(*_OF_BFCL, "numpy==1.26.4"),
    imports="bfcl_eval.constants.model_config",
)

TAU2: Final = Harness(
    name="tau2",
    package="tau2",  # on the index that name is another project's
    version="0.2",
    requirements=("litellm>=1.80.15,<1.82.7",),
    imports="tau2.cli",
    source="τ²-bench (sierra-research/tau2-bench) at its tag v0.2.0, the line that the paper can have used",
)

_ACEBENCH_COMMIT: Final = "56dd66cf6439b0d9655ee1b353e4cd745c6f664e"
ACEBENCH: Final = Harness(
    name="acebench",
    package="ACEBench",
    version=_ACEBENCH_COMMIT[:7],
    requirements=("openai==1.64.0", "httpx<0.28", "python-dotenv", "tqdm", "wcwidth", "openpyxl", "pandas"),
    imports="model_inference.inference_map, model_eval.evaluation_helper",
    source=f"ACEBench (ACEBench/ACEBench) that has its commit {_ACEBENCH_COMMIT[:7]} of 2025-10-29",
    commit=_ACEBENCH_COMMIT,
    # For models that it would run itself, and for Gemini.
    stubs=(("vllm", ("LLM", "SamplingParams")), ("google.generativeai", ())),
)

EVALSCOPE: Final = Harness(
    name="evalscope",
    package="evalscope",
    version="1.14.1",
    # With all that it asks for; BFCL's data and verdicts it takes from BFCL's own package, whose numpy it cannot share.
    requirements=("evalscope==1.14.1", *_OF_BFCL),
    bare=(f"{BFCL.package}=={BFCL.version}",),
    imports="evalscope.run, evalscope.benchmarks.bfcl.v4.bfcl_v4_adapter, bfcl_eval.constants.model_config",
)
"""A second harness of BFCL and AIME."""

INSPECT_EVALS: Final = Harness(
    name="inspect-evals",
    package="inspect-evals",
    version="0.26.0",
    # With all that it asks for. What it writes is inspect-ai's, and that asks for OpenAI's client when it is named.
    requirements=("inspect-evals==0.26.0", "inspect-ai==0.3.285", "openai"),
    imports="inspect_evals.tau2, inspect_ai.model._providers.openai_compatible",
)
"""A second harness of τ²-bench."""

HARNESSES: Final = {harness.name: harness for harness in (BFCL, TAU2, ACEBENCH, EVALSCOPE, INSPECT_EVALS)}
