"""The provenance of a policy: `provenance.json` names the base model and every stage of training."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from astra_jax.config import Frozen
from astra_jax.errors import AstraError
from synthesis.record_io import read_card
from synthesis.records import JsonObject

PROVENANCE = "provenance.json"

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""A name on the HuggingFace hub: an owner and a repository."""


TOKENS_ADDED: Final = "Control tokens added"
"""How a change begins that gave a model tokens it did not have."""


class ProvenanceError(AstraError):
    """A `provenance.json` cannot be read; the message says why."""


class BaseWeights(Frozen):
    """The HuggingFace folder that the first weights were read from."""

    name: str
    """Name on the hub if its config has one, else the name of the folder."""
    config_sha256: str


class DataSet(Frozen):
    """A record directory or a file of conversations that a stage learnt from."""

    kind: str
    count: int
    card_sha256: str
    """SHA-256 of the directory's dataset.json, which has the hash of every shard, or of the file of conversations."""


class TrainingStage(Frozen):
    """One run of SFT or RL."""

    name: str
    config: JsonObject
    """Keys of the run's config that hold no path; `data` and the earlier stages name the inputs by their hashes."""
    data: tuple[DataSet, ...]


class Provenance(Frozen):
    """The base model (None for random weights), and every stage of training since."""

    base: BaseWeights | None = None
    stages: tuple[TrainingStage, ...] = ()
    changes: tuple[str, ...] = ()
    """Changes that a conversion made to the base model, a sentence each without its full stop."""
    source_files: tuple[dict[str, str], ...] = ()
    """Names of files and their SHA-256, one dict for each conversion from a HuggingFace folder, in order."""

    @property
    def has_untrained_calls(self) -> bool:
        """Whether the token that begins a call was added, and no stage has trained the embeddings since."""
        was_trained = any(stage.config.get("lora") is None for stage in self.stages)
        return not was_trained and any(
            change.startswith(TOKENS_ADDED) and "<tool_call>" in change for change in self.changes
        )

    def then(self, stage: TrainingStage) -> Provenance:
        """Return the provenance with one more stage."""
        return self.model_copy(update={"stages": (*self.stages, stage)})

    def write(self, folder: Path) -> None:
        """Write `provenance.json` into a policy or HuggingFace folder."""
        (folder / PROVENANCE).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_provenance(folder: Path | None) -> Provenance:
    """Read `provenance.json` of a folder; without one return an empty provenance.

    Raises:
        ProvenanceError: the file is damaged.
    """
    if folder is None or not (path := folder / PROVENANCE).is_file():
        return Provenance()
    try:
        return Provenance.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise ProvenanceError(f"{path}: {error.errors()[0]['msg']}; delete it to go on without provenance") from error


def imported(hf_folder: Path, names: Sequence[str], changes: Sequence[str] = ()) -> Provenance:
    """Return the provenance of a HuggingFace folder, with the digests of the named files, and changes.

    A folder that this package exported has a provenance; any other folder is itself the base model.

    Raises:
        ProvenanceError: the folder's own provenance is damaged.
    """
    is_known = (hf_folder / PROVENANCE).is_file()
    before = read_provenance(hf_folder) if is_known else Provenance(base=base_model(hf_folder))
    digests: dict[str, str] = {}
    for name in names:
        with (hf_folder / name).open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()  # reads block by block
    more = {"source_files": (*before.source_files, digests), "changes": (*before.changes, *changes)}
    return before.model_copy(update=more)


def base_model(hf_folder: Path) -> BaseWeights:
    """Return the name of a HuggingFace folder and the hash of its config."""
    text = (hf_folder / "config.json").read_bytes()
    # `_name_or_path` may be a path on the machine that saved the folder; such a path must not be published.
    name = str(json.loads(text).get("_name_or_path") or "")
    if not HUB_NAME.fullmatch(name):
        name = hf_folder.resolve().name
    return BaseWeights(name=name, config_sha256=hashlib.sha256(text).hexdigest())


def training_stage(name: str, config: BaseModel, data: Sequence[Path]) -> TrainingStage:
    """Describe a run by its config and its data: record directories, and files with one conversation a line.

    Raises:
        RecordDirectoryError: a directory has no card.
    """
    # Left out are paths of this machine, and settings that only watch the run.
    values = config.model_dump(mode="json", exclude={"wandb", "held_out"})
    shown = {key: value for key, value in values.items() if not _holds_path(getattr(config, key))}
    return TrainingStage(name=name, config=shown, data=tuple(map(_data_set, data)))


def _data_set(path: Path) -> DataSet:
    if path.is_file():
        text = path.read_bytes()
        kind, count = "conversations", sum(bool(line.strip()) for line in text.split(b"\n"))
    else:
        text, card = (path / "dataset.json").read_bytes(), read_card(path)
        kind, count = card.kind, card.count
    return DataSet(kind=kind, count=count, card_sha256=hashlib.sha256(text).hexdigest())


def _holds_path(value: Any) -> bool:
    return any(isinstance(each, Path) for each in (value if isinstance(value, tuple) else [value]))
