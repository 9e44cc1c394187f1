"""The configuration of the trajectories track; defaults are the paper's where it has them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from synthesis.run.places import Place
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.tools.documents import ToolDocumentFilters
from synthesis.tools.mcp_servers import McpServerConfig
from synthesis.trajectories.reward_axes import RewardThresholds
from synthesis.trajectories.tasks import TaskThresholds


class TrajectoriesConfig(BaseModel):
    """Settings of `astra synthesize trajectories`; defaults are the paper's where it has them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of every random draw, from 0 to 2³¹ − 1."""
    count: int = Field(ge=1)
    """Number of trajectories to keep."""
    out: Place
    """Record directory to write."""

    shipped_examples: bool = True
    """Whether the tool documents that the project ships are among the sources."""
    tool_documents: tuple[Place, ...] = ()
    """Files and folders of tool documents, in any known format."""
    mcp_servers: tuple[McpServerConfig, ...] = ()
    """MCP servers whose tools are called for real."""
    filters: ToolDocumentFilters = ToolDocumentFilters()
    """Limits on the documents of servers that are kept."""

    proposals_per_server: int = Field(default=24, ge=1)
    """Number of pairs of task and chain that the teacher proposes for a server."""
    proposal_draws: int = Field(default=1, ge=1)
    """Number of questions in which a server's chains are proposed. A model seldom repeats itself within one answer; the
    weights of the tool graph count chains that several answers have in common."""
    walks_per_server: int = Field(default=64, ge=1)
    """Number of random walks on a server's tool graph; each is a candidate chain."""
    min_chain_length: int = Field(default=2, ge=1)
    """Minimum number of tools in a chain."""
    max_chain_length: int = Field(default=5, ge=1)
    """Maximum number of tools in a chain."""
    acyclic_chains: bool = True
    """Whether a chain has each tool at most once."""
    chain_votes: int = Field(default=3, ge=1)
    """Number of judges' votes on the coherence of a chain; the majority decides."""

    server_only_share: float = Field(default=0.35, ge=0, le=1)
    """Share of tasks written for a server as a whole, without a chain."""
    refuse_share: float = Field(default=0.06, ge=0, le=1)
    """Share of tasks whose tool is withheld, so that the agent must say that it cannot."""
    independent_share: float = Field(default=0.15, ge=0, le=1)
    """Share of tasks whose calls may be independent of one another: they share the user's facts alone."""
    ask_back_share: float = Field(default=0.06, ge=0, le=1)
    """Share of tasks that leave out a fact, so that the agent must ask."""
    follow_up_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the tasks with several calls whose calls are asked for in two or three requests."""
    optional_argument_share: float = Field(default=0.2, ge=0, le=1)
    """Share of optional arguments for which a task states a value."""
    augmentation_share: float = Field(default=0.5, ge=0, le=0.75)
    """Share of a server's tasks, rounded down, that vary an earlier one, which stays; at most once along each axis. Of
    kept tasks it is smaller, since variants of a rejected task are rejected."""
    task_thresholds: TaskThresholds = TaskThresholds()
    """Minimum scores of a kept task."""
    near_duplicate_similarity: float | None = Field(default=None, gt=0, le=1)
    """Jaccard similarity from which two tasks of a server count as one; without it only equal words do."""

    failure_rate: float = Field(default=0.2, ge=0, le=1)
    """Share of emulated calls that are made to fail."""
    max_offered_tools: int = Field(default=24, ge=1)
    """Maximum number of tools in a conversation; a larger server offers the chain's tools and a draw of the others."""
    max_turns: int = Field(default=16, ge=1)
    """Maximum number of assistant messages in a conversation."""
    deadline_seconds: float = Field(default=600.0, gt=0)
    """Maximum number of seconds of a conversation."""
    student: Place | None = None
    """HuggingFace folder with the tokenizer of the model that is to learn from the samples; without one their length
    in tokens is not checked."""
    max_sample_tokens: int = Field(default=20_000, ge=1)
    """Maximum number of the student's tokens in a kept sample, tools included."""
    judges_at_once: bool = False
    """Whether one call asks all judges of a conversation. It takes less than half of the calls and tokens, and is less
    strict, since each judge sees later messages."""
    reward_thresholds: RewardThresholds = RewardThresholds()
    """Minimum scores of a kept trajectory."""

    teacher: OpenAITeacherConfig | None = None
    """A language model as the teacher; without one the embedded teacher answers."""
    templates: bool = True
    """Whether a run without a `[teacher]` may begin: the embedded teacher's templates are no data to train on."""
    concurrency: int = Field(default=64, ge=1)
    """Number of items that are worked on at once."""
    max_attempts_per_trajectory: int = Field(default=5, ge=1)
    """Maximum number of tasks per wanted trajectory; after these the run ends with the trajectories that it has."""

    @model_validator(mode="after")
    def _hangs_together(self) -> TrajectoriesConfig:
        if self.min_chain_length > self.max_chain_length:
            raise ValueError("expected min_chain_length <= max_chain_length")
        if self.refuse_share + self.ask_back_share > 1:
            raise ValueError("expected refuse_share + ask_back_share <= 1")
        return self
