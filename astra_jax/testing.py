"""Fakes for tests, of this project or others: a tiny model, tokenizer, environment and sandbox."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Mapping
from typing import Any

from astra_jax.chat.format import render
from astra_jax.chat.tokenizer import Tokenizer, train_tiny_tokenizer
from astra_jax.model.config import ModelConfig
from sandbox.client import AsyncSandboxClient
from sandbox.protocol import ErrorKind, ExecuteReply, Limits, ToolError, Usage
from synthesis.records import (
    Composition,
    Environment,
    EnvironmentTool,
    Provenance,
    QualityScore,
    SubQuestion,
    ToolCall,
    ToolDocument,
)

_NO_USAGE = Usage(wall_seconds=0.0, cpu_seconds=0.0, max_rss_bytes=0)


def tiny_model_config(vocab_size: int) -> ModelConfig:
    """Return a Qwen3 of two layers and width 32: grouped queries, tied embeddings, milliseconds per step on a CPU."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=64,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
    )


def tiny_tokenizer() -> Tokenizer:
    """Return a byte-level BPE of 512 tokens, trained on the gold episode of `tiny_environment`; it encodes any text."""
    environment = tiny_environment()
    text = render(environment.gold_messages(), [tool.document for tool in environment.tools])
    return train_tiny_tokenizer([text] * 3, vocab_size=512)


def tiny_environment(*, owner: str = "Quartz Heron", flat: str = "Amber Falcon", rent: int = 2150) -> Environment:
    """Return a two-hop environment with two tools: the flat of an owner, and the rent of a flat.

    Both tools also know a second owner and flat, and raise ValueError for a name they do not know.

    >>> [sub_task.answer for sub_task in tiny_environment(flat="Blue Door", rent=7).sub_tasks]
    ['Blue Door', 7]
    """
    flats = {owner: flat, "Copper Lynx": "Jade Otter"}
    rents = {flat: rent, "Jade Otter": 990}
    return Environment(
        id=f"tiny-{owner}-{flat}-{rent}".replace(" ", "-").lower(),
        domain="real estate",
        language="en",
        scenario="multi_hop",
        hops=2,
        question=f"What is the rent of the flat that {owner} owns?",
        answer=rent,
        composition=Composition(operation="same", inputs=("q2",)),
        sub_questions=(
            SubQuestion(
                id="q1",
                question=f"Which flat does {owner} own?",
                answer=flat,
                call=ToolCall(id="c1", name="find_flat", arguments={"owner": owner}),
            ),
            SubQuestion(
                id="q2",
                question=f"What is the rent of {flat}?",
                answer=rent,
                depends_on=("q1",),
                call=ToolCall(id="c2", name="get_rent", arguments={"flat": flat}),
            ),
        ),
        tools=(
            _look_up("find_flat", "owner", "Find the flat of an owner.", flats),
            _look_up("get_rent", "flat", "Get the rent of a flat.", rents),
        ),
        quality=QualityScore(dependency_consistency=1, atomicity=1, sequential_rationality=1, task_completeness=1),
        entities=(owner, flat, "Copper Lynx", "Jade Otter"),
        provenance=Provenance(teacher="hand-written", prompt_version="none", seed=0),
    )


def _look_up(name: str, argument: str, description: str, table: Mapping[str, Any]) -> EnvironmentTool:
    source = (
        f"def {name}({argument}: str):\n"
        f"    if {argument} not in TABLES['rows']:\n"
        f"        raise ValueError('no such {argument}: ' + {argument})\n"
        f"    return TABLES['rows'][{argument}]\n"
    )
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    document = ToolDocument(name=name, description=description, parameters=parameters)
    return EnvironmentTool(document=document, source=source, tables={"rows": dict(table)})


class InProcessSandbox(AsyncSandboxClient):
    """A fast sandbox for trusted tools: it answers like the service, but runs them in this process."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.service_errors = Counter()

    async def execute(
        self,
        source: str,
        function: str,
        arguments: Mapping[str, Any],
        *,
        state: dict[str, Any] | None = None,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> ExecuteReply:
        """Run a trusted tool; an exception of it is its error, as in the service."""
        self.num_calls += 1
        module: dict[str, Any] = {}
        exec(source, module)
        state = copy.deepcopy(state)
        takes_state = "state" in inspect.signature(module[function]).parameters
        with_state = {"state": state} if takes_state else {}
        try:
            value = module[function](**arguments, **with_state)
        except Exception as error:  # noqa: BLE001 - any exception of a tool is its answer
            failure = ToolError(kind=ErrorKind.EXCEPTION, message=f"{type(error).__name__}: {error}")
            return ExecuteReply(status="error", error=failure, usage=_NO_USAGE)
        return ExecuteReply(status="ok", value=value, state=state, usage=_NO_USAGE)

    async def close(self) -> None:
        """Do nothing: there is no connection."""
