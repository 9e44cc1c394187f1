"""The model card of an exported policy: its provenance, and the figures of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from astra_jax.checkpoints.provenance import HUB_NAME, read_provenance
from astra_jax.metrics_file import read_metrics
from astra_jax.model.config import ModelConfig

MODEL_CARD = "README.md"

_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
_OF_THE_MACHINE = ("second", "mfu", "rss", "slowest_host")


def model_card(policy: Path, model: ModelConfig, license_id: str | None = None) -> str:
    """Return the Markdown of an exported policy folder; `license_id` is the hub's name of its license.

    The figures are those of a quickstart's `summary.json`, if the policy is part of one, and those of the last step in
    the `metrics.jsonl` beside the policy.

    Raises:
        ProvenanceError: the provenance of the policy is damaged.
    """
    provenance = read_provenance(policy)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        base=provenance.base,
        stages=provenance.stages,
        family=model.of_family.name,
        num_parameters=model.num_parameters,
        changes=provenance.changes,
        license_id=license_id,
        is_hub_name=provenance.base is not None and HUB_NAME.fullmatch(provenance.base.name) is not None,
        held_out=_held_out(policy),
        last_step=_numbers((read_metrics(policy.parent / "metrics.jsonl") or [{}])[-1]),
    )


def _held_out(policy: Path) -> dict[str, float]:
    """Return the held-out figures of a quickstart's policy."""
    summary = policy.parent.parent / "summary.json"
    if not summary.is_file():
        return {}
    values = json.loads(summary.read_text(encoding="utf-8"))
    return _numbers(values.get("heldout", {}).get(policy.parent.name, {}))


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, int | float) and not any(word in name for word in _OF_THE_MACHINE)
    }
