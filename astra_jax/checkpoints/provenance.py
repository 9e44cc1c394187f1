"""Where a policy comes from: `provenance.json` beside its weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from astra_jax.errors import AstraError
from synthesis.record_io import read_card
from synthesis.records import JsonObject

PROVENANCE = "provenance.json"

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""An owner and a repository."""


class ProvenanceError(AstraError):
    """A `provenance.json` cannot be read; the message says why."""


class BaseWeights(BaseModel):
    """The HuggingFace folder that the first weights were read from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """On the hub if its config says so, else that of the folder."""
    config_sha256: str


class DataSet(BaseModel):
    """A record directory, or a file of conversations, that a stage learnt from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    count: int
    card_sha256: str
    """Of its dataset.json, which has the SHA-256 of every shard; of the file itself, if it is one."""


class TrainingStage(BaseModel):
    """One run of SFT or RL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    config: JsonObject
    """Without paths: the data are named by their hashes, the weights by what stands before."""
    data: tuple[DataSet, ...]


class Provenance(BaseModel):
    """The base model, or none for random weights, and every stage of training since."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: BaseWeights | None = None
    stages: tuple[TrainingStage, ...] = ()
    source_files: tuple[dict[str, str], ...] = ()
    """SHA-256 of each file by its name, for each conversion from a HuggingFace folder, the earliest first."""

    def then(self, stage: TrainingStage) -> Provenance:
        """Return the same with one stage more."""
        return self.model_copy(update={"stages": (*self.stages, stage)})

    def write(self, folder: Path) -> None:
        """Write `provenance.json` into a policy or HuggingFace folder."""
        (folder / PROVENANCE).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_provenance(folder: Path | None) -> Provenance:
    """Read `provenance.json` of a folder; without one nothing is known.

    Raises:
        ProvenanceError: it is not what we write.
    """
    if folder is None or not (path := folder / PROVENANCE).is_file():
        return Provenance()
    try:
        return Provenance.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise ProvenanceError(f"{path}: {error.errors()[0]['msg']}; delete it to go on without") from error


def imported(hf_folder: Path, names: Sequence[str]) -> Provenance:
    """Return where the weights of a HuggingFace folder come from, with the digests of its files of these names.

    An export of ours brings that along; of another folder its name is all that is known.

    Raises:
        ProvenanceError: what the folder brings along is damaged.
    """
    is_known = (hf_folder / PROVENANCE).is_file()
    before = read_provenance(hf_folder) if is_known else Provenance(base=base_model(hf_folder))
    digests: dict[str, str] = {}
    for name in names:
        with (hf_folder / name).open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()  # reads a block at a time
    return before.model_copy(update={"source_files": (*before.source_files, digests)})


def base_model(hf_folder: Path) -> BaseWeights:
    """Name a HuggingFace folder."""
    text = (hf_folder / "config.json").read_bytes()
    # It may be a path on the machine of whoever saved it, which is nobody's business.
    name = str(json.loads(text).get("_name_or_path") or "")
    if not HUB_NAME.fullmatch(name):
        name = hf_folder.resolve().name
    return BaseWeights(name=name, config_sha256=hashlib.sha256(text).hexdigest())


def training_stage(name: str, config: BaseModel, data: Sequence[Path]) -> TrainingStage:
    """Describe a run by its config and what it learns from: record directories, and files with one conversation a line.

    Raises:
        RecordDirectoryError: one of them has no card.
    """
    sets = []
    for directory in data:
        if directory.is_file():
            text = directory.read_bytes()
            count = sum(bool(line.strip()) for line in text.split(b"\n"))
            digest = hashlib.sha256(text).hexdigest()
            sets.append(DataSet(kind="conversations", count=count, card_sha256=digest))
            continue
        card = read_card(directory)
        digest = hashlib.sha256((directory / "dataset.json").read_bytes()).hexdigest()
        sets.append(DataSet(kind=card.kind, count=card.count, card_sha256=digest))
    return TrainingStage(name=name, config=_without_paths(config), data=tuple(sets))


def _without_paths(config: BaseModel) -> JsonObject:
    """The keys of a config, but those that say where things lie on a machine or who and what watches the run."""
    values = config.model_dump(mode="json", exclude={"wandb", "held_out"})
    return {key: value for key, value in values.items() if not _holds_path(getattr(config, key))}


def _holds_path(value: Any) -> bool:
    return isinstance(value, Path) or (
        isinstance(value, tuple | list) and any(isinstance(each, Path) for each in value)
    )
