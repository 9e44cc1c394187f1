"""Long documents: tools documented at the length of a real service's reference, by rule.

    description   its own paragraph, then sections in a drawn order until a drawn number of words is reached
    arguments     a description of each that has none
    optional      nested parameters that the code takes and that change no reply

All tools draw from one distribution, by name: length says nothing of whether a question needs the tool. The own
paragraph stays first and alone decides similarity. Gold calls are replayed on the changed code.
"""

from __future__ import annotations

import ast
import json
import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from synthesis.records import EnvironmentTool, JsonObject, JsonValue, Language

_WORDS: Final = (8, 80)
"""Words of the sections at which no further one begins; half of the documents draw less than the geometric mean."""
_NUMBERS_OF_OPTIONAL: Final = (0, 0, 0, 0, 1, 1)
_SENTENCES: Final[Mapping[str, Any]] = tomllib.loads(
    files(__package__).joinpath("long_documents.toml").read_text(encoding="utf-8")
)
_SECTIONS: Final = ("use", "errors", "limits", "notes", "fields", "example")


def lengthened(tool: EnvironmentTool, language: Language, seed: int) -> EnvironmentTool:
    """Return a tool with a long document, whose code takes the optional parameters that were added."""
    document, words = tool.document, _SENTENCES[language]
    rng, is_chinese = random.Random(f"long document/{seed}/{document.name}"), language == "zh"
    properties: JsonObject = {}
    for name, schema in document.parameters.get("properties", {}).items():
        told = {"description": rng.choice(words["argument"])}
        properties[name] = {**told, **schema} if "description" not in schema else schema
    candidates = [each for each in _SENTENCES["parameters"] if each["name"] not in properties]
    added: JsonObject = {}
    for each in rng.sample(candidates, min(rng.choice(_NUMBERS_OF_OPTIONAL), len(candidates))):
        name, schema = each["name"], _in_language({k: v for k, v in each.items() if k != "name"}, language)
        schema["description"] += f"{'' if is_chinese else ' '}{words['optional']}"
        added[name] = {"type": "object", **schema}
    parameters = {**document.parameters, "properties": {**properties, **added}}
    first = f"{document.description.rstrip('.。')}{'。' if is_chinese else '.'}"
    description = "\n\n".join([first, *_sections(rng, words, is_chinese, document.required, properties)])
    longer = document.model_copy(update={"description": description, "parameters": parameters})
    source = _taking(tool.source, document.name, list(added)) if added else tool.source
    return tool.model_copy(update={"document": longer, "source": source})


def _sections(
    rng: random.Random, words: Mapping[str, Any], is_chinese: bool, required: Sequence[str], properties: JsonObject
) -> list[str]:
    wanted = math.exp(rng.uniform(*map(math.log, _WORDS)))
    sections: list[str] = []
    for name in rng.sample(_SECTIONS, len(_SECTIONS)):
        if name == "fields":
            lines = [f"- `{field}`: {properties[field]['description']}" for field in required]
        elif name == "example":
            lines = [json.dumps({field: f"<{field}>" for field in required})]
        else:
            lines = [f"- {line}" for line in rng.sample(words[name], rng.randrange(1, 5))]
        sections.append("\n".join([f"{words['headings'][name]}:", *lines]))
        said = "".join(sections)
        if (len(said) / 2 if is_chinese else len(said.split())) >= wanted:  # a Chinese word has about two characters
            break
    return sections


def _taking(source: str, function: str, names: Sequence[str]) -> str:
    """Return a module whose function takes further parameters, which are None if they are not given.

    >>> _taking("def f(a: str) -> int:\\n    return 1\\n", "f", ["b"])
    'def f(a: str, b: dict | None = None) -> int:\\n    return 1\\n'
    """
    node = next(each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name == function)
    arguments = node.args
    parameters = [*arguments.args, *arguments.kwonlyargs]  # the end of one is that of its type
    given: list[ast.expr | ast.arg] = [*parameters, *arguments.defaults, *filter(None, arguments.kw_defaults)]
    row, column = max((each.end_lineno or 0, each.end_col_offset or 0) for each in given)
    lines = source.encode().splitlines(keepends=True)
    before, after = lines[row - 1][:column], lines[row - 1][column:]  # columns count bytes of UTF-8
    lines[row - 1] = before + "".join(f", {name}: dict | None = None" for name in names).encode() + after
    return b"".join(lines).decode()


def _in_language(value: JsonValue, language: Language) -> Any:
    """Return a value in which each table of `en` and `zh` is replaced by the text in a language."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {"en", "zh"}:
        return value[language]
    return {key: _in_language(inner, language) for key, inner in value.items()}
