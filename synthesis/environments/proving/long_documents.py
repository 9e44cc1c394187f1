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
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from synthesis.records import EnvironmentTool, JsonObject, JsonValue, Language

_WORDS: Final = (8, 80)
"""Words of the sections at which no further one begins; half of the documents draw less than the geometric mean."""
_NUMBERS_OF_OPTIONAL: Final = (0, 0, 0, 0, 1, 1)
_SECTIONS: Final = ("use", "errors", "limits", "notes", "fields", "example")


def lengthened(tool: EnvironmentTool, language: Language, seed: int) -> EnvironmentTool:
    """Return a tool with a long document, whose code takes the optional parameters that were added."""
    document, words = tool.document, _sentences()[language]
    rng = random.Random(f"long document/{seed}/{document.name}")
    properties: JsonObject = {}
    for name, schema in document.parameters.get("properties", {}).items():
        told = {"description": rng.choice(words["argument"])}
        properties[name] = {**told, **schema} if "description" not in schema else schema
    candidates = [each for each in _sentences()["parameters"] if each["name"] not in properties]
    added: JsonObject = {
        each["name"]: {"type": "object", **_in_language({k: v for k, v in each.items() if k != "name"}, language)}
        for each in rng.sample(candidates, min(rng.choice(_NUMBERS_OF_OPTIONAL), len(candidates)))
    }
    for schema in added.values():
        schema["description"] += f"{'' if language == 'zh' else ' '}{words['optional']}"
    parameters = {**document.parameters, "properties": {**properties, **added}}
    description = f"{document.description.rstrip('.。')}{'。' if language == 'zh' else '.'}" + "".join(
        f"\n\n{text}" for text in _sections(rng, words, language, document.required, properties)
    )
    return tool.model_copy(
        update={
            "document": document.model_copy(update={"description": description, "parameters": parameters}),
            "source": _taking(tool.source, document.name, tuple(added)),
        }
    )


def _sections(
    rng: random.Random, words: Mapping[str, Any], language: Language, required: tuple[str, ...], properties: JsonObject
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
        # A Chinese word has about two characters.
        if (len(said) / 2 if language == "zh" else len(said.split())) >= wanted:
            break
    return sections


def _taking(source: str, function: str, names: tuple[str, ...]) -> str:
    """Return a module whose function takes further parameters, which are None if they are not given.

    >>> _taking("def f(a: str) -> int:\\n    return 1\\n", "f", ("b",))
    'def f(a: str, b: dict | None = None) -> int:\\n    return 1\\n'
    """
    if not names:
        return source
    node = next(each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name == function)
    arguments = node.args
    given: list[ast.expr | ast.arg] = [
        *arguments.args,
        *arguments.kwonlyargs,
        *arguments.defaults,
        *filter(None, arguments.kw_defaults),
    ]
    given += [each.annotation for each in (*arguments.args, *arguments.kwonlyargs) if each.annotation is not None]
    last = max((each.end_lineno or 0, each.end_col_offset or 0) for each in given)
    lines = source.encode().splitlines(keepends=True)
    row, column = last[0] - 1, last[1]  # columns count bytes of UTF-8
    text = "".join(f", {name}: dict | None = None" for name in names).encode()
    lines[row] = lines[row][:column] + text + lines[row][column:]
    return b"".join(lines).decode()


def _in_language(value: JsonValue, language: Language) -> Any:
    """Return a value in which each table of `en` and `zh` is replaced by the text in a language."""
    if isinstance(value, dict):
        if value.keys() == {"en", "zh"}:
            return value[language]
        return {key: _in_language(inner, language) for key, inner in value.items()}
    return value


@cache
def _sentences() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("long_documents.toml").read_text(encoding="utf-8"))
