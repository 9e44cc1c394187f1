"""The certificate of a set of environments: figures of policies that must not succeed, and one that must."""

from __future__ import annotations

from typing import Final

from pydantic import Field, computed_field

from synthesis.records.tools import Language, Record

SILENT_ATTACKS: Final = ("empty", "refuse", "ask_back", "copy", "constant")
ATTACKS: Final = (*SILENT_ATTACKS, "lexical", "everything", "told_names", "style", "schema")
"""The attacks on all environments of ours; silent ones call no tool."""
MEANING: Final = "meaning"
"""A further attack, where the extra `embeddings` is installed: the tools nearest to the question by meaning."""


class AttackFigures(Record):
    """The figures of one policy in all environments, rounded to four digits; `low` and `high` bound 95 %."""

    f1: float
    """Mean of the F1 reward; in a foreign environment of its own reward."""
    low: float
    high: float
    solved: float
    """Share of environments solved whole."""
    solved_low: float
    solved_high: float
    answers: float
    """Share of final messages that tell the gold answer."""


class BlindAccuracy(Record):
    """How often a model that sees no question picks an own tool among tools that share a required parameter."""

    accuracy: float
    """Share of own tools in whose group the most believed tool is own, from 0 to 1; a tie counts by its share."""
    chance: float
    """Accuracy of a blind draw: the mean share of own tools in these groups."""
    num_tools: int
    """Number of own tools that have a rival."""


class Certificate(Record):
    """The figures of all attacks on a set, and what is needed to compute them again."""

    source: str
    """Kind of the set: `environments` for records of ours."""
    digest: str
    """Digest of the records."""
    num_environments: int
    num_left_out: int = 0
    """Environments with nothing to solve; they are in no figure."""
    attack_code: str
    """Digest of the code of the attacks."""
    gold: AttackFigures | None = None
    """Figures of the gold policy, the oracle; None if a foreign set has no gold answers."""
    attacks: dict[str, AttackFigures]
    blind_accuracy: dict[str, dict[Language, BlindAccuracy]] = Field(default={})
    """Accuracy of the blind models `style` (of documents) and `schema`, by language."""
    canary_leaks: int | None = None
    """Episodes in which a token planted in the tools' sources reached a reply; None if sources are out of reach."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gold_f1(self) -> float | None:
        """F1 of the gold policy."""
        return None if self.gold is None else self.gold.f1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def best_attack(self) -> str:
        """Name of the attack with the highest F1."""
        return max(self.attacks, key=lambda name: self.attacks[name].f1)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def best_attack_f1(self) -> float:
        """The highest F1 of an attack."""
        return self.attacks[self.best_attack].f1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def floor_f1(self) -> float:
        """The highest F1 of an attack that calls no tool."""
        return max(self.attacks[name].f1 for name in SILENT_ATTACKS if name in self.attacks)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gap(self) -> float | None:
        """F1 of the gold policy less that of the best attack."""
        return None if self.gold is None else round(self.gold.f1 - self.best_attack_f1, 4)

    @property
    def policies(self) -> dict[str, AttackFigures]:
        """Figures of all policies by their names, the gold policy first."""
        return ({} if self.gold is None else {"gold": self.gold}) | self.attacks

    @property
    def fault(self) -> str | None:
        """A fault of the environments themselves, in words; None if there is none."""
        if self.canary_leaks:
            return f"policies read the source of a tool in {self.canary_leaks} episodes"
        return None if self.gold_f1 in (None, 1) else f"the gold policy must have F1 1, and has {self.gold_f1:g}"
