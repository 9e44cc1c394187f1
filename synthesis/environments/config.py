"""The configuration of the environments track."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from synthesis.environments.embeddings import Embedding
from synthesis.environments.quality import Percentile
from synthesis.environments.quotas import Variety
from synthesis.questions.knowledge import Unseen
from synthesis.records import AugmentationKind, Difficulty, Habit, Language, Scenario, SimilarityBand
from synthesis.teacher.config import OpenAITeacherConfig, require_one_purse
from synthesis.workers import RayConfig


class EnvironmentsConfig(BaseModel):
    """What to synthesise; by default with the paper's shares of languages, domains and parallel multi-hop questions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0, lt=2**31)
    count: int = Field(ge=1)
    out: Path
    teacher: OpenAITeacherConfig | None = None
    """A language model as the teacher; without one the embedded teacher answers."""
    knowledge: tuple[Path, ...] = ()
    """Files and folders that questions are made from, in turn; without, the names of `domains` are the knowledge."""
    disjoint_from: tuple[Path, ...] = ()
    """Record directories of environments with which no entity and no answer may be shared."""
    unseen: Unseen = "worlds"
    """What else may not be shared with them: `tools` excludes tools (names, documents, parameters), `domains` also
    domains."""
    scenarios: dict[Scenario, float] = {
        "single_hop": 0.174,
        "parallel_single_hop": 0.174,
        "multi_hop": 0.174,
        "parallel_multi_hop": 0.478,
    }
    languages: dict[Language, float] = {"en": 0.712, "zh": 0.288}
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
    lookups: dict[Scenario, dict[int, float]] = {
        "single_hop": {1: 1.0},
        "parallel_single_hop": {2: 0.2, 3: 0.3, 4: 0.3, 5: 0.2},
        "multi_hop": {2: 0.1, 3: 0.3, 4: 0.4, 5: 0.2},
        "parallel_multi_hop": {3: 0.10, 4: 0.30, 5: 0.16, 6: 0.24, 8: 0.20},
    }
    """Tool calls per environment of each scenario."""
    computations: float = Field(default=0.59, ge=0, le=1)
    """Share of the parallel environments that end in a sub-question that needs no tool."""
    name_parts: dict[Language, int] = {}
    """How many first and second parts entity names are made of, where it is to be fewer than there are."""
    varieties: dict[Variety, float] = {"plain": 1.0}
    """Shares of stateful environments, and of those where a tool is withheld or a parameter is left out."""
    stateful_tools: int = Field(default=2, ge=2)
    """The fewest tools of a stateful environment; those that its task does not need read and change the same state."""
    demonstrations: dict[Habit, Annotated[float, Field(ge=0, le=1)]] = {}
    """Shares of the environments whose demonstration has a habit (`environments/demonstrations.py` says of each what it
    is); the rest, and those that have no room for theirs, demonstrate their gold episode."""
    augmentation: dict[AugmentationKind, Annotated[float, Field(ge=0, le=1)]] = {}
    """Shares of the kept environments of which a variant of each kind is made: the same gold, and no teacher asked.
    Beside `out`, which stays as it is, `<out>.augmented` has all environments, each followed by its variants."""
    difficulty: Difficulty = "plain"
    """`hard`: questions in other words than the tools' documents, and siblings of the tools among the distractors."""
    max_hops: int = Field(default=5, ge=1)
    quality_threshold: Annotated[float, Field(ge=0, le=1)] | Percentile = 0.9
    """The least QS(τ) that is kept: a value, or `{ percentile = 10 }`, below which lies a tenth of what was scored."""
    scaled_documents: float = Field(default=0.0, ge=0, le=1)
    """Share of the tools whose documents get optional parameters, such as units and pages."""
    irrelevant_per_band: dict[SimilarityBand, int] = {"high": 2, "medium": 2, "low": 2}
    """K: the most distractors of each similarity band that an environment has."""
    embedding: Embedding | None = None
    """Who says how similar tools are, for bands of irrelevant tools and for merging: `{ folder = "DIR" }`, a static
    embedding model that model2vec has saved, or `{ url = "URL", model = "NAME" }`, an OpenAI-compatible endpoint. Left
    out, similarity is lexical: shared letters of names, descriptions and parameters, which know no synonyms. For data
    to train on, name one."""
    packages: tuple[str, ...] = Field(default=(), exclude_if=lambda packages: not packages)
    """Packages that the code of tools may import, such as `["numpy"]`: the teacher is told of them, the sandbox must
    let tools have them (`astra sandbox serve --packages FOLDER`), and each tool's record says which it needs."""
    concurrency: int = Field(default=16, ge=1)
    """How many items are worked on at once."""
    ray: RayConfig | None = None
    """A cluster to work on; without one this machine does all the work. The records are the same."""

    @model_validator(mode="after")
    def _unseen_by_some_split(self) -> EnvironmentsConfig:
        if self.unseen != "worlds" and not self.disjoint_from:
            raise ValueError(
                f"expected directories in disjoint_from, whose {self.unseen} are not to occur, found none; name them, "
                f'or leave unseen = "{self.unseen}" out'
            )
        return self

    @model_validator(mode="after")
    def _habits_share_the_environments(self) -> EnvironmentsConfig:
        if (total := sum(self.demonstrations.values())) > 1:
            raise ValueError(f"expected shares of demonstrations that sum to at most 1, found {total:g}")
        return self

    @model_validator(mode="after")
    def _hard_where_there_is_a_wording(self) -> EnvironmentsConfig:
        if self.difficulty == "hard" and (self.unseen != "worlds" or self.varieties.get("stateful")):
            raise ValueError(
                'expected difficulty = "plain" with unseen tools, unseen domains or stateful varieties, found "hard"; '
                "leave one out"
            )
        return self

    @model_validator(mode="after")
    def _one_purse(self) -> EnvironmentsConfig:
        require_one_purse(self.teacher, is_on_ray=self.ray is not None)
        return self
