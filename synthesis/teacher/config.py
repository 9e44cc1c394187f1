"""The models that are asked in each role, and their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from synthesis.records import JsonObject
from synthesis.teacher.protocol import Role

OUR_FIELDS: Final = frozenset(
    {"model", "messages", "tools", "response_format", "seed", "stream", "n", "max_completion_tokens", "max_tokens"}
)
"""Fields of a call that the teacher sets itself; `extra_body` cannot hold them."""
_DECIDES: Final = frozenset({"temperature", "top_p", "max_completion_tokens", "extra_body"})


def _without_our_fields(extra_body: JsonObject) -> JsonObject:
    if ours := sorted(OUR_FIELDS & extra_body.keys()):
        raise ValueError(f"the fields {ours} are those that the teacher says itself; remove them")
    return extra_body


ExtraBody = Annotated[JsonObject, AfterValidator(_without_our_fields)]


class RoleConfig(BaseModel):
    """The settings of one role that differ from those of `[teacher]`.

    >>> base = OpenAITeacherConfig(model="a", temperature=0.5, roles={"judges": RoleConfig(model="b")})
    >>> base.of("judges").model, base.of("judges").temperature, base.of("agent").model
    ('b', 0.5, 'a')
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    extra_body: ExtraBody | None = None
    usd_per_million_prompt_tokens: float | None = Field(default=None, ge=0)
    usd_per_million_completion_tokens: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _key_of_its_own(self) -> RoleConfig:
        if self.base_url is not None and self.api_key_env is None:
            raise ValueError(
                "base_url is set without api_key_env; name the variable that holds the key for this address: another "
                "endpoint's key is not sent there"
            )
        return self


class OpenAITeacherConfig(BaseModel):
    """The model that is asked, and its limits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Name of the model at the endpoint."""
    base_url: str = "https://api.openai.com/v1"
    """Address of the endpoint, with /v1."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key; the key itself is nowhere in a configuration."""
    cache: Path | None = None
    """SQLite file of the replies and of the sum spent; by default it lies beside the output of the run. Runs that name
    the same file share the replies and the budget."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of replies."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Share of probability that tokens are drawn from; without it the endpoint's default."""
    max_completion_tokens: int = Field(default=4096, ge=1)
    """Maximum number of tokens of a reply; one that is cut off there is asked for once more with twice as many."""
    extra_body: ExtraBody = {}
    """Further fields of each call, as they are, such as `reasoning_effort` or `chat_template_kwargs`."""
    roles: dict[Role, RoleConfig] = {}
    """Settings that differ for a role, such as `[teacher.roles.judges]`."""
    max_concurrency: int = Field(default=64, ge=1)
    """Maximum number of calls in flight at one endpoint, those of all its roles together."""
    request_seconds: float = Field(default=120.0, gt=0)
    """Time limit of one call in seconds."""
    deadline_seconds: float = Field(default=900.0, gt=0)
    """Time limit of one question in seconds, its retries and repairs included."""
    max_retries: int = Field(default=3, ge=0)
    """Maximum number of times that a failed call is repeated."""
    max_failures_in_a_row: int = Field(default=32, ge=1)
    """Number of unanswered questions in a row that count as an outage and stop the run."""
    max_usd: float | None = Field(default=None, gt=0)
    """Maximum cost of the run in US dollars, all its commands together; at this limit the run stops."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of the run, prompts and replies together."""
    usd_per_million_prompt_tokens: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens in US dollars."""
    usd_per_million_completion_tokens: float = Field(default=0.0, ge=0)
    """Price of a million completion tokens in US dollars."""

    @model_validator(mode="after")
    def _dollars_need_prices(self) -> OpenAITeacherConfig:
        if self.max_usd is not None and not all(self.of(role).has_price for role in get_args(Role)):
            raise ValueError(
                "max_usd is set, and some role has no prices; set usd_per_million_prompt_tokens and "
                "usd_per_million_completion_tokens, or max_tokens instead"
            )
        return self

    def of(self, role: Role) -> OpenAITeacherConfig:
        """Return the configuration under which a role is asked."""
        if role not in self.roles:
            return self
        return self.model_copy(update=self.roles[role].model_dump(exclude_none=True))

    def with_replies_beside(self, out: Path) -> OpenAITeacherConfig:
        """Return the configuration of a run that writes to `out`: its replies are kept beside it by default."""
        return self if self.cache else self.model_copy(update={"cache": replies_beside(out)})

    @property
    def has_price(self) -> bool:
        """Whether a token costs anything."""
        return bool(self.usd_per_million_prompt_tokens or self.usd_per_million_completion_tokens)

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the cost of tokens in US dollars.

        >>> prices = {"usd_per_million_prompt_tokens": 2, "usd_per_million_completion_tokens": 8}
        >>> OpenAITeacherConfig(model="m", **prices).cost_usd(500_000, 125_000)
        2.0
        """
        prompt_cost = prompt_tokens * self.usd_per_million_prompt_tokens
        return (prompt_cost + completion_tokens * self.usd_per_million_completion_tokens) / 1e6

    @property
    def name(self) -> str:
        """The teacher's name in records: the model, and those of roles that have another.

        >>> OpenAITeacherConfig(model="a", roles={"agent": RoleConfig(model="b"), "user": RoleConfig(top_p=0.9)}).name
        'openai:a agent:b'
        """
        others = [f"{role}:{self.of(role).model}" for role in sorted(self.roles) if self.of(role).model != self.model]
        return " ".join([f"openai:{self.model}", *others])

    def what_decides(self) -> JsonObject:
        """Return the settings that decide the replies, beside the name: no address, key, limit of time or price."""
        of_roles = {role: one.model_dump(include=set(_DECIDES), exclude_none=True) for role, one in self.roles.items()}
        return {**self.model_dump(include=set(_DECIDES)), "roles": of_roles}

    def sampled_with(self) -> JsonObject:
        """Return the fields of a call that control sampling."""
        fields = self.model_dump(include={"temperature", "max_completion_tokens", "top_p"}, exclude_none=True)
        return fields | self.extra_body


def replies_beside(out: Path) -> Path:
    """Return the file of an endpoint's replies for a run that writes to `out`.

    >>> replies_beside(Path("runs/trajectories")).as_posix()
    'runs/trajectories.replies.sqlite'
    """
    return out.with_name(f"{out.name}.replies.sqlite")
