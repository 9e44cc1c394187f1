"""How many tools are left apart that do the same, where each sub-question's tool is documented in words of its own.

    python scripts/bench_merging.py [--count 60] [--seed 0] [--embedding '{"folder": "models/potion"}']

The embedded teacher gives every tool for one property the same document. Here whoever documents a tool chooses his own
description, names of parameters and, in the second row, verb of the name, as a language model does; code and calls
follow. Which tools do the same is known, since each looks one property up. Printed for environments with several
lookups: sub-questions with a tool, tools that are left, of these those beside another one for the same property and
those that answer for several properties. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pydantic import TypeAdapter

from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.proving.merging import merge_sub_environments
from synthesis.environments.proving.sub_environments import build_sub_environments
from synthesis.environments.selection.quotas import plan_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.qa_instance import WriteQAInstance
from synthesis.prompts.tool_call_writing import WriteToolCall
from synthesis.prompts.tool_document_writing import WriteToolDocument
from synthesis.prompts.tool_implementation_writing import ToolImplementation, WriteToolImplementation
from synthesis.questions.knowledge import Knowledge
from synthesis.records import ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Reply, Request

VERBS = ("get", "find", "fetch", "retrieve", "look_up", "query")
DESCRIPTIONS = {
    "en": (
        "{}",
        "Look up the {}.",
        "Returns the {}, as it stands in the records.",
        "Use this tool whenever you need to know the {}.",
        "Given its name, tells you the {}.",
        "Retrieve the {}. Fails if the name is unknown.",
    ),
    "zh": (
        "{}",
        "查询{}。",
        "返回记录中的{}。",
        "需要知道{}时使用此工具。",
        "根据名称给出{}。",
        "获取{}，名称未知时报错。",
    ),
}
PARAMETERS = ("{}", "{}_name", "name_of_{}", "which_{}", "the_{}")


@dataclass
class WordyTeacher(ProceduralTeacher):
    """The embedded teacher, but each tool's document is worded anew; what it writes for the tool follows."""

    with_verbs: bool
    plain: dict[str, tuple[ToolDocument, Mapping[str, str]]] = field(default_factory=dict)
    """The document as the embedded teacher has it, and its parameters' new names, by the one that was worded anew."""

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer as the embedded teacher does of its own documents."""
        answer: Any
        match request:
            case WriteToolDocument():
                answer = self._worded(await super().ask(request, seed=seed), request.node.question)
            case WriteToolCall():
                document, names = self.plain[request.document.model_dump_json()]
                plain = await super().ask(request.model_copy(update={"document": document}), seed=seed)
                answer = plain.model_copy(update={"arguments": {names[k]: v for k, v in plain.arguments.items()}})
            case WriteToolImplementation():
                document, names = self.plain[request.document.model_dump_json()]
                written = await super().ask(request.model_copy(update={"document": document}), seed=seed)
                source = written.source.replace(
                    f'"""{document.description}."""', f'"""{request.document.description}"""'
                )
                for name, new in {**names, document.name: request.document.name}.items():
                    source = re.sub(rf'(?<!")\b{name}\b(?!")', new, source)
                answer = ToolImplementation(source=source, tables=written.tables)
            case _:
                answer = await super().ask(request, seed=seed)
        return answer  # type: ignore[no-any-return]

    def _worded(self, document: ToolDocument, question: str) -> ToolDocument:
        rng = Random(question)
        said = document.description[0].lower() + document.description[1:]
        language = "en" if document.description.isascii() else "zh"
        names = {name: rng.choice(PARAMETERS).format(name) for name in document.required}
        properties = {names[name]: schema for name, schema in document.parameters["properties"].items()}
        verb = rng.choice(VERBS) if self.with_verbs else "get"
        worded = ToolDocument(
            name=re.sub("^get", verb, document.name),
            description=rng.choice(DESCRIPTIONS[language]).format(said),
            parameters={"type": "object", "properties": properties, "required": list(names.values())},
        )
        self.plain[worded.model_dump_json()] = (document, names)
        return worded


async def measure(url: str, count: int, seed: int, teacher: WordyTeacher, embedding: Any) -> dict[str, int]:
    """Merge the tools of so many environments, and count what is left."""
    found: Counter[str] = Counter()
    config = EnvironmentsConfig(seed=seed, count=count, out="unused")
    lookups = {scenario: shares for scenario, shares in config.lookups.items() if scenario != "single_hop"}
    shares = {scenario: config.scenarios[scenario] for scenario in lookups}
    plans = plan_environments(
        count, seed, scenarios=shares, languages=config.languages, domains=config.domains, lookups=lookups,
        computations=config.computations, varieties=config.varieties,
    )  # fmt: skip
    async with AsyncSandboxClient(url) as sandbox:
        for plan in plans:
            knowledge = Knowledge(domain=plan.domain, language=plan.language, seed=plan.index)
            request = WriteQAInstance(
                knowledge=knowledge, scenario=plan.scenario, num_lookups=plan.num_lookups,
                with_computation=plan.with_computation, max_hops=config.max_hops,
            )  # fmt: skip
            try:
                instance = await teacher.ask(request, seed=plan.index)
                built = await build_sub_environments(teacher, sandbox, knowledge, instance, seed=plan.index)
                keywords = {"embedding": embedding} if embedding is not None else {}
                sub_questions, tools = await merge_sub_environments(
                    teacher, sandbox, built, seed=plan.index, **keywords
                )
            except (BadReply, Rejected) as error:
                found[f"rejected: {type(error).__name__}"] += 1
                continue
            properties = {
                item.sub_question.id: teacher.plain[item.tool.document.model_dump_json()][0].name
                for item in built
                if item.tool is not None
            }
            told: dict[str, set[str]] = {tool.document.name: set() for tool in tools}
            for sub_question in sub_questions:
                if sub_question.call is not None:
                    told[sub_question.call.name].add(properties[sub_question.id])
            found["environments"] += 1
            found["sub-questions with a tool"] += len(properties)
            found["tools"] += len(tools)
            found["tools left as _2, _3"] += sum(bool(re.search(r"_\d+$", name)) for name in told)
            found["tools beside another for the same property"] += len(tools) - len(set(properties.values()))
            found["tools for several properties"] += sum(len(of) > 1 for of in told.values())
    return dict(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--embedding", type=json.loads, help="as the key `embedding` of the config")
    options = parser.parse_args(arguments)
    embedding = None
    if options.embedding is not None:
        annotation: Any = EnvironmentsConfig.model_fields["embedding"].annotation
        embedding = TypeAdapter(annotation).validate_python(options.embedding)
    rows = {}
    with local_sandbox(2) as url:
        for name, with_verbs in (("descriptions and parameters", False), ("names, too", True)):
            teacher = WordyTeacher(with_verbs)
            rows[name] = asyncio.run(measure(url, options.count, options.seed, teacher, embedding))
            print(name, rows[name], sep=": ")
    print(json.dumps({"work": f"{options.count} environments, seed {options.seed}", "ours": rows}))


if __name__ == "__main__":
    main()
