"""Chains: candidates are verified by rule, then by votes; a failing chain is dropped and counted.

By rule: every required argument must be bound to a constant of the schema, to a fact of the task (a slot), or to an
output of an earlier call. The bindings stay in the chain. By vote: the whole must be coherent; votes stop early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Final

from synthesis.prompts.chains import ProposedChain, ProposedChains, VoteOnChain
from synthesis.records import ArgumentBinding, Chain, JsonObject, JsonValue, ServerDocument, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.tools.names import words_of
from synthesis.track.seeds import derived_seed

_CREDENTIALS: Final = frozenset(
    {"api_key", "apikey", "access_token", "auth_token", "token", "password", "secret", "secret_key", "private_key"}
)
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})
MAX_STATED_FIELDS: Final = 4
"""Maximum number of required fields in an object argument that a request can state."""


@lru_cache(maxsize=65536)
def slot_name(argument: str) -> str:
    """Return the one spelling under which calls share a fact.

    >>> slot_name("orderId"), slot_name("order_id")
    ('order_id', 'order_id')
    """
    return "_".join(words_of(argument)) or argument


def scalar_type(schema: JsonValue) -> str | None:
    """Return the scalar type of a schema; None for arrays, objects and schemas that say nothing certain."""
    if not isinstance(schema, dict):
        return None
    types = schema.get("type")
    if isinstance(types, str) and types in _SCALARS:  # as nearly all are
        return types
    named = [name for name in (types if isinstance(types, list) else [types]) if name != "null"]
    if named and named[0] in _SCALARS:  # of several types the first one counts: a call can be made with it
        return named[0]
    if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
        return "string"
    return None


def is_statable(argument: str, schema: JsonValue) -> bool:
    """Say whether a user could state a value: a scalar, a list of scalars or a small object; never a credential."""
    if slot_name(argument) in _CREDENTIALS or not isinstance(schema, dict):
        return False
    if scalar_type(schema):
        return True
    if schema.get("type") == "array":
        items = schema.get("items", {})
        return not items or scalar_type(items) is not None or is_statable("item", items)
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        required = schema.get("required", [])
        # Optional fields need not be stated, so they do not count.
        return len(required) <= MAX_STATED_FIELDS and all(is_statable(name, fields.get(name)) for name in required)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        return any(is_statable(argument, alternative) for alternative in alternatives)
    return "type" not in schema  # a schema without a type takes any value


def outputs_of(tool: ToolDocument) -> Iterator[tuple[str, str, JsonObject]]:
    """Yield (JSON pointer, owner, schema) of every scalar that a tool says it returns, at most one list deep.

    The owner is the word that says whose value it is: the name of the enclosing field, or the tool's own last word.
    """
    yield from _outputs(tool.output_schema, "", words_of(tool.name)[-1] if words_of(tool.name) else "", 0)


def _outputs(schema: JsonValue, pointer: str, owner: str, depth: int) -> Iterator[tuple[str, str, JsonObject]]:
    if not isinstance(schema, dict) or depth > 3:
        return
    if schema.get("type") == "array":
        # The first item stands for the list: any of its values will do as an argument.
        yield from _outputs(schema.get("items"), f"{pointer}/0", owner, depth + 1)
        return
    for name, inner in schema.get("properties", {}).items():
        path = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
        if scalar_type(inner):
            yield path, owner, inner
        else:
            yield from _outputs(inner, path, (words_of(name) or (owner,))[-1], depth + 1)


def usable_proposals(server: ServerDocument, proposed: ProposedChains) -> list[ProposedChain]:
    """Return the proposals whose tools the server has; the others are dropped.

    Raises:
        Rejected: there are proposals, and none can be used.
    """
    known = {tool.name for tool in server.tools}
    usable = [proposal for proposal in proposed.proposals if proposal.tools and known.issuperset(proposal.tools)]
    if proposed.proposals and not usable:
        unknown = sorted({name for proposal in proposed.proposals for name in proposal.tools} - known)
        raise Rejected("proposals of unknown tools", f"{server.name!r} has no {unknown[:5]}")
    return usable


def bind_chain(server: ServerDocument, names: Sequence[str]) -> Chain:
    """Bind every required argument of the chain's calls.

    Raises:
        Rejected: an unknown tool, or an argument that neither the task nor an earlier output can satisfy.
    """
    documents = {tool.name: tool for tool in server.tools}
    if unknown := [name for name in names if name not in documents]:
        raise Rejected("chain with an unknown tool", f"{server.name!r} has no {unknown}")
    tools = [documents[name] for name in names]
    bindings: list[ArgumentBinding] = []
    slots: dict[str, str | None] = {}
    for index, tool in enumerate(tools):
        properties = tool.parameters.get("properties", {})
        for argument in tool.required:
            origin = _origin_of(server, tool, tools[:index], argument, properties.get(argument, {}), slots)
            bindings.append(ArgumentBinding(tool_index=index, argument=argument, **origin))
    return Chain(tools=tuple(names), bindings=tuple(bindings))


def _origin_of(
    server: ServerDocument,
    tool: ToolDocument,
    earlier: Sequence[ToolDocument],
    argument: str,
    schema: JsonObject,
    slots: dict[str, str | None],
) -> JsonObject:
    """Return the source of an argument and its place there, as fields of its binding.

    `slots` are the facts that the task states so far, with their types; a new one is added.

    Raises:
        Rejected: nothing satisfies the argument.
    """
    if "const" in schema or len(schema.get("enum", ())) == 1:
        return {"source": "constant", "constant": schema["const"] if "const" in schema else schema["enum"][0]}
    slot = slot_name(argument)
    # A fact that was stated already comes before an output: two calls on one order mean the same order.
    if slot in slots and slots[slot] == scalar_type(schema):
        return {"source": "task", "slot": slot}
    for index in reversed(range(len(earlier))):  # the latest call that returns such a value
        for pointer, owner, output in outputs_of(earlier[index]):
            if fits(argument, schema, pointer, owner, output):
                return {"source": "earlier_output", "earlier_tool_index": index, "earlier_output_path": pointer}
    wanted = f"{tool.name}.{argument} of {server.name!r}"
    if not is_statable(argument, schema):
        raise Rejected("argument that nothing satisfies", wanted)
    # A user knows an id only from the server. If a tool gives it out, the chain must call that tool first, unless the
    # operator lists ids that exist.
    if not {argument, f"{tool.name}.{argument}"} & server.argument_values.keys():
        for other in server.tools:
            if other.name != tool.name and _issues_identifier(other, argument, schema):
                detail = f"{wanted} comes from {other.name}, which is not called"
                raise Rejected("argument that nothing satisfies", detail)
    if slot in slots:  # the same name with another type is another fact
        slot = f"{slot_name(tool.name)}_{slot}"
    slots[slot] = scalar_type(schema)
    return {"source": "task", "slot": slot}


def fits(argument: str, schema: JsonObject, pointer: str, owner: str, output: JsonObject) -> bool:
    """Say whether an output can be an argument: same type, and the same name or the identifier of its owner.

    >>> text = {"type": "string"}
    >>> fits("hotel_id", text, "/hotels/0/id", "hotels", text), fits("guest_id", text, "/hotels/0/id", "hotels", text)
    (True, False)
    """
    kinds = {scalar_type(schema), scalar_type(output)}
    # A Boolean that was returned says nothing of a flag that is to be set, even under the same name.
    if None in kinds or (len(kinds) > 1 and kinds != {"integer", "number"}) or "boolean" in kinds:
        return False
    if "enum" in schema and output.get("enum") != schema["enum"]:
        return False
    wanted, found = slot_name(argument), slot_name(pointer.rsplit("/", 1)[1])
    if wanted == found:
        return True
    return found in ("id", "code") and wanted == f"{singular(owner)}_{found}"


def singular(word: str) -> str:
    """Return a plural's singular, by the regular endings.

    >>> singular("cities"), singular("hotels"), singular("address"), singular("status")
    ('city', 'hotel', 'address', 'status')
    """
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def is_identifier(argument: str) -> bool:
    """Say whether an argument names a thing by an id that a server gave out.

    >>> is_identifier("orderId"), is_identifier("city")
    (True, False)
    """
    return bool(words := words_of(argument)) and words[-1] in ("id", "uuid", "guid", "handle", "ref")


def _issues_identifier(tool: ToolDocument, argument: str, schema: JsonObject) -> bool:
    """Say whether a tool gives out the identifiers that an argument takes, without being given one itself."""
    if not is_identifier(argument) or slot_name(argument) in {slot_name(name) for name in tool.required}:
        return False
    return any(fits(argument, schema, pointer, owner, output) for pointer, owner, output in outputs_of(tool))


def with_optional_arguments(chain: Chain, server: ServerDocument, rng: Random, *, share: float) -> Chain:
    """Add a task slot for some optional scalar arguments, each with probability `share`: they are to be learnt too.

    For a tool that requires no argument the probability is one half at least: a call without any says little.
    """
    documents = {tool.name: tool for tool in server.tools}
    bindings = list(chain.bindings)
    slots = {binding.slot for binding in bindings}
    for index, name in enumerate(chain.tools):
        properties = documents[name].parameters.get("properties", {})
        likely = share if documents[name].required else max(share, 0.5)
        for argument, schema in properties.items():
            if argument in documents[name].required or not (scalar_type(schema) and is_statable(argument, schema)):
                continue
            if rng.random() < likely and (slot := slot_name(argument)) not in slots:
                slots.add(slot)
                bindings.append(ArgumentBinding(tool_index=index, argument=argument, source="task", slot=slot))
    bindings.sort(key=lambda binding: binding.tool_index)  # stable: of one call, required arguments come first
    return Chain(tools=chain.tools, bindings=tuple(bindings))


def task_slots(chain: Chain, server: ServerDocument) -> dict[str, tuple[ToolDocument, str, JsonObject]]:
    """Return the facts that the task must state: slot name to the (tool, argument, schema) that first takes it."""
    documents = {tool.name: tool for tool in server.tools}
    slots: dict[str, tuple[ToolDocument, str, JsonObject]] = {}
    for binding in chain.bindings:
        if binding.slot is not None and binding.slot not in slots:
            tool = documents[chain.tools[binding.tool_index]]
            slots[binding.slot] = (tool, binding.argument, tool.parameters["properties"].get(binding.argument, {}))
    return slots


async def vote_on_chain(chain: Chain, server: ServerDocument, teacher: Teacher, *, seed: int, votes: int) -> None:
    """Let the teacher vote until a majority of `votes` is certain.

    Raises:
        Rejected: the majority finds the chain incoherent.
    """
    documents: Mapping[str, ToolDocument] = {tool.name: tool for tool in server.tools}
    request = VoteOnChain(language=server.language, tools=tuple(documents[name] for name in chain.tools), chain=chain)
    majority = votes // 2 + 1
    coherent = incoherent = 0
    while coherent < majority and incoherent < majority:
        vote = await teacher.ask(request, seed=derived_seed(seed, "vote", coherent + incoherent))
        coherent += vote.coherent
        incoherent += not vote.coherent
        if incoherent >= majority:
            raise Rejected("incoherent chain", f"{' -> '.join(chain.tools)}: {vote.reason}")
