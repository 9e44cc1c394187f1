"""Chains: candidates are verified by rule, then by votes; a failing chain is dropped and counted.

By rule: every required argument must be bound to a constant of the schema, to a fact of the task (a slot), or to an
output of an earlier call. The teacher says which earlier output gives an argument; the bindings stay in the chain. A
chain with a call that shares neither a value nor a fact with the others is dropped. By vote: the whole must be
coherent; votes stop early.

Decided: docs/decisions/trajectories.md, “Results are completed by schema, and later calls take values from them”.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from synthesis.prompts.chains import BindArguments, EarlierValue, ProposedChain, ProposedChains, VoteOnChain
from synthesis.records import ArgumentBinding, Chain, JsonObject, JsonValue, ServerDocument, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.tools.nouns import is_identifier, reference_of
from synthesis.track.replies import accepted_reply
from synthesis.track.seeds import derived_seed
from synthesis.trajectories.bindings import outputs_of, paths_to, same_type, scalar_type, slot_name, values_from_earlier

_CREDENTIALS: Final = frozenset(
    {"api_key", "apikey", "access_token", "auth_token", "token", "password", "secret", "secret_key", "private_key"}
)
MAX_STATED_FIELDS: Final = 4
"""Maximum number of required fields in an object argument that a request can state."""


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


async def bound_chain(server: ServerDocument, names: Sequence[str], teacher: Teacher, *, seed: int) -> Chain:
    """Bind a chain's arguments; the teacher says which of them an earlier result gives.

    Raises:
        Rejected, BadReply: the chain cannot be bound, or the teacher's answer does not hold.
    """
    documents = {tool.name: tool for tool in server.tools}
    tools = tuple(documents[name] for name in names if name in documents)
    if len(tools) < max(2, len(names)):  # there is nothing to ask; an unknown tool is a fault of the chain
        return bind_chain(server, names)
    request = BindArguments(language=server.language, tools=tools)
    return await accepted_reply(teacher, request, lambda reply: bind_chain(server, names, reply.values), seed=seed)


def bind_chain(server: ServerDocument, names: Sequence[str], given: Sequence[EarlierValue] | None = None) -> Chain:
    """Bind every required argument of a chain's calls to a constant, to a fact of the task or to an earlier result.

    `given` are the values of earlier results that arguments take; without it the rule of `bindings` finds them.

    Raises:
        Rejected: a tool is unknown, a given value is not there, two of them fit one argument, nothing satisfies an
            argument, or a call shares nothing with the others.
    """
    documents = {tool.name: tool for tool in server.tools}
    if unknown := [name for name in names if name not in documents]:
        raise Rejected("chain with an unknown tool", f"{server.name!r} has no {unknown}")
    tools = [documents[name] for name in names]
    places: dict[tuple[int, str], EarlierValue] = {}
    for value in values_from_earlier(tools) if given is None else given:
        _check_given(value, tools)
        if places.setdefault((value.tool_index, value.argument), value) != value:
            raise Rejected("argument that two earlier values fit", f"{value.argument!r} of {names[value.tool_index]}")
    bindings: list[ArgumentBinding] = []
    slots: dict[str, str | None] = {}
    for index, tool in enumerate(tools):
        optional = [argument for call, argument in places if call == index and argument not in tool.required]
        for name in (*tool.required, *optional):
            origin = _origin_of(server, tool, name, places.get((index, name)), slots)
            bindings.append(ArgumentBinding(tool_index=index, argument=name, **origin))
    is_independent = len(tools) > 1 and not any(binding.source == "earlier_output" for binding in bindings)
    chain = Chain(tools=tuple(names), bindings=tuple(bindings), is_independent=is_independent)
    _check_connected(chain)
    return chain


def _check_given(value: EarlierValue, tools: Sequence[ToolDocument]) -> None:
    """Reject a value that is not in the result of an earlier call, or not of a type that the argument takes."""
    is_earlier = 0 <= value.earlier_tool_index < value.tool_index < len(tools)
    schema = tools[value.tool_index].parameters.get("properties", {}).get(value.argument) if is_earlier else None
    outputs = {path: output for path, _, output in outputs_of(tools[value.earlier_tool_index])} if is_earlier else {}
    if schema is None or not same_type(schema, outputs.get(value.earlier_output_path)):
        raise Rejected("earlier value that is not there", f"{value.argument!r} of call {value.tool_index}: {value}")


def _check_connected(chain: Chain) -> None:
    """Check that every call takes a value of another, gives it one, or shares a fact of the task with one."""
    groups = [{index} for index in range(len(chain.tools))]
    users: dict[str, int] = {}
    for binding in chain.bindings:
        other = binding.earlier_tool_index
        if binding.slot is not None:
            other = users.setdefault(binding.slot, binding.tool_index)
        if other is not None and (joined := groups[other] | groups[binding.tool_index]):
            for index in joined:
                groups[index] = joined
    if alone := [name for name, group in zip(chain.tools, groups, strict=True) if group != groups[0]]:
        raise Rejected("calls that share nothing", f"{chain.tools[0]} and {alone[0]}")


def _origin_of(
    server: ServerDocument, tool: ToolDocument, argument: str, given: EarlierValue | None, slots: dict[str, str | None]
) -> JsonObject:
    """Return the source of an argument as fields of its binding; a new fact of the task is added to `slots`."""
    schema = tool.parameters.get("properties", {}).get(argument, {})
    if "const" in schema or len(schema.get("enum", ())) == 1:
        return {"source": "constant", "constant": schema["const"] if "const" in schema else schema["enum"][0]}
    if given is not None:
        return {"source": "earlier_output", **given.model_dump(exclude={"tool_index", "argument"})}
    slot = slot_name(argument)
    if slot in slots and slots[slot] == scalar_type(schema):
        return {"source": "task", "slot": slot}
    wanted = f"{tool.name}.{argument} of {server.name!r}"
    if not is_statable(argument, schema):
        raise Rejected("argument that nothing satisfies", wanted)
    if issuer := issuer_of(server, tool, argument):
        raise Rejected("argument that nothing satisfies", f"{wanted} comes from {issuer}, which is not called before")
    if slot in slots:  # the same name with another type is another fact
        slot = f"{slot_name(tool.name)}_{slot}"
    slots[slot] = scalar_type(schema)
    return {"source": "task", "slot": slot}


def issuer_of(server: ServerDocument, tool: ToolDocument, argument: str, later: tuple[str, ...] = ()) -> str | None:
    """Return the tool of a server that gives out the identifiers for an argument; None if a user can know them.

    A user can know a value that is no identifier, or that the operator lists. A tool that can itself be called only
    after this one, or after `later` ones, gives out nothing before them.
    """
    reference = reference_of(tool, argument)
    is_listed = {argument, f"{tool.name}.{argument}"} & server.argument_values.keys()
    if reference is None or not reference.is_identifier or is_listed:
        return None
    later = (*later, tool.name)
    for other in server.tools:
        if other.name not in later and paths_to(other, tool, argument):
            waits = [name for name in other.required if any(paths_to(each, other, name) for each in server.tools)]
            if len(later) > 2 or all(issuer_of(server, other, name, later) for name in waits if is_identifier(name)):
                return other.name
    return None


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
        bound = {binding.argument for binding in chain.bindings if binding.tool_index == index}
        for argument, schema in properties.items():
            if argument in bound or not (scalar_type(schema) and is_statable(argument, schema)):
                continue
            if issuer_of(server, documents[name], argument):  # the user cannot know it
                continue
            if rng.random() < likely and (slot := slot_name(argument)) not in slots:
                slots.add(slot)
                bindings.append(ArgumentBinding(tool_index=index, argument=argument, source="task", slot=slot))
    bindings.sort(key=lambda binding: binding.tool_index)  # stable: of one call, required arguments come first
    return chain.model_copy(update={"bindings": tuple(bindings)})


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
    documents = {tool.name: tool for tool in server.tools}
    request = VoteOnChain(language=server.language, tools=tuple(documents[name] for name in chain.tools), chain=chain)
    majority = votes // 2 + 1
    coherent = incoherent = 0
    while coherent < majority and incoherent < majority:
        vote = await teacher.ask(request, seed=derived_seed(seed, "vote", coherent + incoherent))
        coherent += vote.coherent
        incoherent += not vote.coherent
        if incoherent >= majority:
            raise Rejected("incoherent chain", f"{' -> '.join(chain.tools)}: {vote.reason}")
