"""The data card of an export: `README.md` with the YAML head that the Hugging Face hub reads.

The head names licence, languages, split, counts and the type of every column; the text says how the rows were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import jinja2
import yaml

from synthesis.contamination import Overlap
from synthesis.record_io import DatasetCard
from synthesis.records import Certificate, Environment, JsonObject, KeptRecord, ServerDocument, Trajectory
from synthesis.run.fingerprint import digest
from synthesis.teacher.protocol import made_by

DATA_CARD: Final = "README.md"
_TEMPLATE: Final = Path(__file__).with_name("data_card.md.jinja")
_SIZES: Final = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}
"""Names of the hub's size categories, by the count that they stay below."""


@dataclass
class Contents:
    """Counts over the records of an export, taken while they are written."""

    languages: Counter[str] = field(default_factory=Counter)
    domains: Counter[str] = field(default_factory=Counter)
    teachers: Counter[str] = field(default_factory=Counter)
    prompt_versions: Counter[str] = field(default_factory=Counter)
    documents: dict[str, set[str]] = field(default_factory=dict)
    """Name of a tool to the digests of its documents."""

    def add(self, record: KeptRecord) -> None:
        """Count a record."""
        if isinstance(record, ServerDocument | Trajectory | Environment):
            self.languages[record.language] += 1
            self.domains[record.domain] += 1
        if isinstance(record, Trajectory | Environment):
            self.teachers[record.provenance.teacher] += 1
            self.prompt_versions[record.provenance.prompt_version] += 1
        if isinstance(record, Environment):
            for tool in record.all_tools:
                self.documents.setdefault(tool.document.name, set()).add(digest(tool.document.to_openai()))


def data_card(
    card: DatasetCard,
    contents: Contents,
    *,
    columns: Sequence[JsonObject],
    format_name: str,
    file: Path,
    split: str,
    licence: str,
    certificate: Certificate | None = None,
    overlap: Overlap | None = None,
) -> str:
    """Return the Markdown of the data card of a `file` of rows that were made from records with this `card`.

    The head names the file unless it is a folder, for which the hub has no reader.

    It says nothing of when or where it was written: the same records have the same card.
    """
    has_reader = file.is_file()
    size = next((name for below, name in _SIZES.items() if card.count < below), "n>1M")
    head: JsonObject = {
        "license": licence,
        **({"language": sorted(contents.languages)} if contents.languages else {}),
        "task_categories": ["text-generation"],
        "tags": ["tool-use", "synthetic", "astra-jax"],
        "size_categories": [size],
    }
    if has_reader:
        head["configs"] = [{"config_name": "default", "data_files": [{"split": split, "path": file.name}]}]
        counted = {"name": split, "num_bytes": file.stat().st_size, "num_examples": card.count}
        head["dataset_info"] = {"features": list(columns), "splits": [counted]}
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        head=yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=10_000),
        card=card,
        kind=card.kind.replace("_", " "),
        counts={
            "language": contents.languages,
            "domain": contents.domains,
            "teacher": contents.teachers,
            "prompts' version": contents.prompt_versions,
        },
        columns=[(column["name"], _type_in_words(column)) for column in columns],
        made_by=made_by(contents.teachers),
        num_names=len(contents.documents),
        num_ambiguous_names=sum(len(documents) > 1 for documents in contents.documents.values()),
        format_name=format_name,
        file=file.name,
        has_reader=has_reader,
        split=split,
        licence=licence,
        certificate=certificate,
        overlap=overlap,
    )


def _type_in_words(feature: JsonObject) -> str:
    """Say a type in a few words.

    >>> _type_in_words({"name": "a", "list": "json"}), _type_in_words({"struct": [{"name": "b", "dtype": "string"}]})
    ('list of json', 'struct of b')
    """
    if "list" in feature:
        inner = feature["list"]
        inner = {"struct": inner} if isinstance(inner, list) else {"dtype": inner} if isinstance(inner, str) else inner
        return f"list of {_type_in_words(inner)}"
    if "struct" in feature:
        return f"struct of {', '.join(part['name'] for part in feature['struct'])}"
    return str(feature["dtype"])
