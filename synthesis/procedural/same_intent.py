"""The test whether two tools do the same, by the nouns of their names and the kinds of their parameters.

A language model reads meaning. These rules read words, so two words of the same meaning count as two things.
"""

from __future__ import annotations

from typing import Final

from synthesis.prompts.tool_merging import FindHomogeneousTool, HomogeneousTool
from synthesis.records import ToolDocument
from synthesis.tools.names import words_of

_SAYS_NOTHING: Final = frozenset({
    "get", "find", "fetch", "retrieve", "look", "lookup", "up", "query", "search", "show", "check", "tell", "read",
    "return", "list", "of", "the", "a", "an", "for", "by", "which", "name",
})  # fmt: skip
"""Words of names that do not count as nouns: verbs of looking up, and words between nouns."""


def find_homogeneous_tool(request: FindHomogeneousTool, seed: int) -> HomogeneousTool:
    """Name the first candidate whose name has the same nouns and whose parameters correspond one to one."""
    assert request.sub_question.call is not None
    for candidate in request.candidates:
        if nouns_of(candidate.original_name or candidate.name) != nouns_of(request.tool.name):
            continue
        names = corresponding(request.tool, candidate)
        if names is not None:
            arguments = {names[name]: value for name, value in request.sub_question.call.arguments.items()}
            reason = "the same nouns, and parameters of the same kinds"
            return HomogeneousTool(reason=reason, tool=candidate.name, arguments=arguments)
    return HomogeneousTool(reason="no other tool is named after the same thing", tool=None)


def nouns_of(name: str) -> frozenset[str]:
    """Return the words of a name that state its subject.

    >>> nouns_of("get_flat_rent") == nouns_of("look_up_rent_of_flat"), nouns_of("get_flat_rent") == nouns_of("flat")
    (True, False)
    """
    return frozenset(words_of(name)) - _SAYS_NOTHING


def corresponding(one: ToolDocument, other: ToolDocument) -> dict[str, str] | None:
    """Return the parameters of one tool, each with that of the other one that means the same; None where one has none.

    Parameters mean the same if their names have the same nouns; one that is left over on each side means the other if
    they have the same type. Both must be required, or neither.

    >>> def tool(**types): return ToolDocument(name="t", description="", parameters={
    ...     "properties": {name: {"type": kind} for name, kind in types.items()}, "required": list(types)})
    >>> corresponding(tool(flat="string", year="string"), tool(year="string", name_of_flat="string"))
    {'flat': 'name_of_flat', 'year': 'year'}
    >>> corresponding(tool(flat="string"), tool(flat="integer")) is None
    True
    """
    theirs = list(other.parameters.get("properties", {}))
    found: dict[str, str] = {}
    ours = list(one.parameters.get("properties", {}))
    for name in ours:
        same = next((each for each in theirs if nouns_of(each) == nouns_of(name)), None)
        if same is not None:
            found[name] = same
            theirs.remove(same)
    left = [name for name in ours if name not in found]
    if len(left) != len(theirs) or len(left) > 1:
        return None
    found |= dict(zip(left, theirs, strict=True))
    return {name: found[name] for name in ours} if all(_alike(one, name, other, found[name]) for name in ours) else None


def _alike(one: ToolDocument, name: str, other: ToolDocument, other_name: str) -> bool:
    schema, other_schema = one.parameters["properties"][name], other.parameters["properties"][other_name]
    return schema.get("type") == other_schema.get("type") and (name in one.required) == (other_name in other.required)
