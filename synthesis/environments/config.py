"""The configuration of the environments track, and those of the splits beside one training split.

training ◄── heldout          other worlds of its domains
         ◄── heldout_tools    tools that the training does not have, of its domains
         ◄── heldout_domains  domains that it does not have
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from synthesis.embeddings import Embedding
from synthesis.questions.knowledge import Unseen
from synthesis.records import Difficulty, Language, Scenario, SimilarityBand
from synthesis.run.places import Place
from synthesis.teacher.config import OpenAITeacherConfig

Variety = Literal["plain", "stateful", "stateful_database", "withheld_tool", "missing_parameter"]
"""The particular property of an environment; the paper's environments are all plain."""

NUM_HELD_OUT: Final = 192
"""Number of environments in each held-out split. Each is tried once, since mostly all of its episodes fail, or none
does."""
NUM_UNSEEN: Final = 96
_SEED_OFFSET: Final = 1_000_000


class EnvironmentsConfig(BaseModel):
    """Settings of the environments track; by default the paper's shares of languages, domains and parallel multi-hop
    questions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0, lt=2**31)
    """Seed of every random draw, from 0 to 2³¹ − 1."""
    count: int = Field(ge=1)
    """Number of environments to make."""
    out: Place
    """Record directory to write."""
    teacher: OpenAITeacherConfig | None = None
    """A language model as the teacher; without one the embedded teacher answers."""
    knowledge: tuple[Place, ...] = ()
    """Files and folders of knowledge, used in turn; without them the names of `domains` are the knowledge."""
    disjoint_from: tuple[Place, ...] = ()
    """Record directories of environments with which no entity and no answer may be shared."""
    unseen: Unseen = "worlds"
    """Further things that may not be shared with `disjoint_from`: `tools` excludes tools (names, documents,
    parameters), `domains` also domains."""
    scenarios: dict[Scenario, float] = {
        "single_hop": 0.174,
        "parallel_single_hop": 0.174,
        "multi_hop": 0.174,
        "parallel_multi_hop": 0.478,
    }
    """Shares of the four scenarios; the paper gives 0.478 for parallel multi-hop."""
    languages: dict[Language, float] = {"en": 0.712, "zh": 0.288}
    """Shares of languages; the defaults are the paper's."""
    domains: dict[str, float] = {
        "real_estate": 0.156,
        "ecommerce": 0.106,
        "healthcare": 0.081,
        "travel": 0.094,
        "education": 0.094,
        "library": 0.094,
        "logistics": 0.094,
        "finance": 0.094,
        "dining": 0.0935,
        "employment": 0.0935,
    }
    """Shares of domains; the defaults are the paper's for the domains that it names."""
    lookups: dict[Scenario, dict[int, float]] = {
        "single_hop": {1: 1.0},
        "parallel_single_hop": {2: 0.2, 3: 0.3, 4: 0.3, 5: 0.2},
        "multi_hop": {2: 0.1, 3: 0.3, 4: 0.4, 5: 0.2},
        "parallel_multi_hop": {3: 0.10, 4: 0.30, 5: 0.16, 6: 0.24, 8: 0.20},
    }
    """Shares of the numbers of tool calls per environment, for each scenario."""
    computations: float = Field(default=0.59, ge=0, le=1)
    """Share of the parallel environments that end in a sub-question that needs no tool."""
    name_parts: dict[Language, int] = {}
    """Number of first and of second parts of entity names by language; without an entry all parts are used."""
    varieties: dict[Variety, float] = {"plain": 1.0}
    """Shares by kind: `plain`, `stateful`, `stateful_database` (SQLite), `withheld_tool`, `missing_parameter`."""
    difficulty: Difficulty = "plain"
    """`plain`; `reworded`: each tool has siblings that other words of one meaning tell from it (embedded teacher); or
    `hard`: questions share no words with their tools' documents, and each tool has siblings."""
    max_hops: int = Field(default=5, ge=1)
    """Maximum number of hops of a question."""
    quality_threshold: float = Field(default=0.9, ge=0, le=1)
    """Minimum QS(τ) of a kept environment."""
    naturalness_threshold: float = Field(default=0.0, ge=0, le=1, exclude_if=lambda threshold: not threshold)
    """Minimum naturalness of a question that is kept, as the teacher judges it; at 0 it is not asked."""
    scaled_documents: float = Field(default=0.0, ge=0, le=1)
    """Share of the tools whose documents get optional parameters, such as units and pages."""
    long_documents: bool = False
    """Whether tools are documented at the length of a real service's reference, by rule, in all environments alike."""
    irrelevant_per_band: dict[SimilarityBand, int] = {"high": 2, "medium": 2, "low": 2}
    """Maximum number of distractors of each similarity band in an environment (the paper's K)."""
    fewest_irrelevant: float = Field(default=1.0, gt=0, le=1)
    """Least share of `irrelevant_per_band`; each environment draws its share from here to 1, for all bands."""
    embedding: Embedding = "lexical"
    """Source of the similarity of tools: `lexical` (shared letters), `multilingual` (meaning; extra `embeddings`), or
    `{ folder = "DIR" }` (a static model that model2vec saved). It decides bands of irrelevant tools, and merging."""
    packages: tuple[str, ...] = Field(default=(), exclude_if=lambda packages: not packages)
    """Packages that the code of tools may import, such as `["numpy"]`: the teacher is told of them, the sandbox must
    let tools have them (`astra sandbox serve --packages FOLDER`), and each tool's record says which it needs."""
    concurrency: int = Field(default=16, ge=1)
    """Number of items that are worked on at once."""

    @model_validator(mode="after")
    def _hangs_together(self) -> EnvironmentsConfig:
        if self.unseen != "worlds" and not self.disjoint_from:
            raise ValueError(
                f"disjoint_from is empty; name the directories whose {self.unseen} are not to occur, or leave "
                f'unseen = "{self.unseen}" out'
            )
        if without := sorted(self.scenarios.keys() - self.lookups.keys()):
            raise ValueError(f"[lookups] has no numbers of tool calls for {', '.join(without)}; add them")
        if self.difficulty == "reworded" and (self.teacher or {*self.varieties} & {"stateful", "stateful_database"}):
            raise ValueError(
                'difficulty = "reworded" does not go with a [teacher] or stateful varieties; leave one out'
            )
        if self.difficulty == "hard" and self.unseen != "worlds":
            raise ValueError('difficulty = "hard" does not go with unseen tools or unseen domains; leave one out')
        return self


def held_out_configs(training: EnvironmentsConfig) -> dict[str, EnvironmentsConfig]:
    """Return the config of each further split by the name of its folder beside the training's, in order of synthesis.

    The shares and sizes are the training's. Unseen domains are all of `EnvironmentsConfig`'s default domains that the
    training does not have, in equal shares.

    >>> training = EnvironmentsConfig(seed=0, count=1000, out="runs/train", domains={"library": 1.0})
    >>> splits = held_out_configs(training)
    >>> [(name, split.count, split.unseen) for name, split in splits.items()]
    [('heldout', 192, 'worlds'), ('heldout_tools', 96, 'tools'), ('heldout_domains', 96, 'domains')]
    >>> str(splits["heldout"].out), "library" in splits["heldout_domains"].domains
    ('runs/heldout', False)

    Raises:
        ValueError: the training has all domains, so that none is unseen; or it is hard, which unseen tools cannot be.
    """
    if training.difficulty == "hard":
        raise ValueError('there are no unseen tools of difficulty = "hard"; set it to "plain"')
    names = ("heldout", "heldout_tools", "heldout_domains")
    out = {name: training.out.with_name(name) for name in names}
    known: Mapping[str, float] = EnvironmentsConfig.model_fields["domains"].default
    others = {domain: 1.0 for domain in known if domain not in training.domains}
    if not others:
        raise ValueError(f"every default domain is among {sorted(training.domains)}; leave one out")
    changes: dict[str, dict[str, Any]] = {
        "heldout": {"count": NUM_HELD_OUT},
        "heldout_tools": {"count": NUM_UNSEEN, "unseen": "tools"},
        "heldout_domains": {"count": NUM_UNSEEN, "unseen": "domains", "domains": others},
    }
    for number, name in enumerate(names, start=1):
        changes[name] |= {"seed": training.seed + number * _SEED_OFFSET, "out": out[name]}
        changes[name] |= {"disjoint_from": (training.out,)}
    return {name: training.model_copy(update=change) for name, change in changes.items()}
