"""The official harnesses: the package, version and modules of each.

`locks/NAME.in` lists the packages that a harness needs, and `locks/NAME.txt` has their versions and the digests of
their wheels. `uv pip compile --universal --generate-hashes --only-binary :all: --python-version 3.11 --no-annotate`
makes the second of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Harness:
    """The recipe of an environment, beside the lock of its name."""

    name: str
    package: str
    version: str
    imports: str
    """Modules that must be importable in the end."""
    writes_to: str | None = None
    """Variable that names the folder into which the harness writes while it is imported."""
    source: str | None = None
    """Description of the checkout of a harness that no package index has; None for a package."""
    commit: str = ""
    """Commit or tag of the checkout whose files are taken."""
    modules: str = "."
    """Folder of the checkout in which its modules lie."""
    program: tuple[str, str] | None = None
    """Name of the checkout's program, and the module that it runs."""
    stubs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Modules that the harness imports and never calls, with the names that it imports from them; empty modules stand
    in their place."""


BFCL_HARNESS: Final = Harness(
    name="bfcl",
    package="bfcl-eval",
    version="2026.3.23",
    imports="bfcl_eval.constants.model_config",
    writes_to="BFCL_PROJECT_ROOT",
)

TAU2_HARNESS: Final = Harness(
    name="tau2",
    package="tau2",  # on the index that name is another project's
    version="0.2.0",
    imports="tau2.cli",
    source="τ²-bench (sierra-research/tau2-bench) that has its tag v0.2.0, of the line that the paper can have used",
    commit="v0.2.0",
    modules="src",
    program=("tau2", "tau2.cli"),
)

_ACEBENCH_COMMIT: Final = "56dd66cf6439b0d9655ee1b353e4cd745c6f664e"
ACEBENCH_HARNESS: Final = Harness(
    name="acebench",
    package="ACEBench",
    version=_ACEBENCH_COMMIT[:7],
    imports="model_inference.inference_map, model_eval.evaluation_helper",
    source=f"ACEBench (ACEBench/ACEBench) that has its commit {_ACEBENCH_COMMIT[:7]} of 2025-10-29",
    commit=_ACEBENCH_COMMIT,
    # These serve models that it would run itself, and Gemini.
    stubs=(("vllm", ("LLM", "SamplingParams")), ("google.generativeai", ())),
)

HARNESSES: Final = {harness.name: harness for harness in (BFCL_HARNESS, TAU2_HARNESS, ACEBENCH_HARNESS)}
