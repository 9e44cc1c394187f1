"""Answers to the questions of the trajectories track."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any

from synthesis.procedural import judgements
from synthesis.procedural.agent_turns import read_progress, take_turn
from synthesis.procedural.argument_values import known_or_drawn_value, phrase
from synthesis.procedural.emulated_responses import emulate_call
from synthesis.procedural.output_completion import complete_output
from synthesis.procedural.task_grammar import FRAMES, clause_of, render_task, value_in_words
from synthesis.prompts import chains, judges, tasks
from synthesis.prompts.agent_turn import TakeTurn
from synthesis.prompts.emulated_tool_response import EmulateCall
from synthesis.prompts.parameter_completion import CompletedParameters, CompleteOutput, CompleteParameters
from synthesis.prompts.simulated_user import AnswerAsUser, ContinueAsUser, UserReply, UserTurn
from synthesis.records import Chain, ServerDocument, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Request
from synthesis.tools.nouns import effect_of
from synthesis.track.seeds import derived_random
from synthesis.trajectories.bindings import paths_to, slot_name, values_from_earlier
from synthesis.trajectories.chains import bind_chain, task_slots
from synthesis.trajectories.tasks import is_stated


def propose_chains(request: chains.ProposeChains, seed: int) -> chains.ProposedChains:
    """Begin with any tool, put the tools that it needs before it, go on with tools that share data or a fact."""
    rng = derived_random(seed, "chains")
    tools = request.server.tools
    documents = {tool.name: tool for tool in tools}

    @cache  # all proposals ask of the same pairs
    def relatedness(earlier: str, later: str) -> int:
        """Weigh how one tool can follow another: data that flows, an argument that is shared."""
        before, after = documents[earlier], documents[later]
        flows = any(paths_to(before, after, argument) for argument in after.required)
        shared = set(map(slot_name, before.required)) & set(map(slot_name, after.required))
        return 4 * flows + 2 * bool(shared)

    proposals = []
    for _ in range(request.count):
        chain = _with_producers(rng.choice(tools), tools)
        while len(chain) < 5 and (len(chain) < 2 or rng.random() < 0.6):
            weights = {
                index: weight
                for index, tool in enumerate(tools)
                if tool not in chain and (weight := max(relatedness(earlier.name, tool.name) for earlier in chain))
            }
            if not weights:
                break
            successor = tools[rng.choices(list(weights), weights=list(weights.values()))[0]]
            chain += [tool for tool in _with_producers(successor, tools) if tool not in chain]
        if 2 <= len(chain) <= 5:  # producers may have made it longer
            task = "; ".join(clause_of(tool, request.server.language) for tool in chain)
            proposals.append(chains.ProposedChain(task=task, tools=tuple(tool.name for tool in chain)))
    return chains.ProposedChains(proposals=tuple(proposals))


def _with_producers(tool: ToolDocument, tools: tuple[ToolDocument, ...], depth: int = 0) -> list[ToolDocument]:
    """Return a tool, preceded by the tools that give out its arguments."""
    chain: list[ToolDocument] = []
    # At most three deep: tools may give out each other's arguments in a circle.
    for argument in tool.required if depth < 3 else ():
        for producer in tools:
            if producer not in chain and paths_to(producer, tool, argument):
                chain += [earlier for earlier in _with_producers(producer, tools, depth + 1) if earlier not in chain]
                break
    return [earlier for earlier in chain if earlier.name != tool.name] + [tool]


def vote_on_chain(request: chains.VoteOnChain, seed: int) -> chains.Vote:
    """Vote a chain coherent if nothing follows a removal; that its calls share data was checked before."""
    if any(effect_of(tool) == "delete" for tool in request.tools[:-1]):
        return chains.Vote(coherent=False, reason="something is used after it was removed")
    return chains.Vote(coherent=True, reason="each step follows from one before")


def bind_arguments(request: chains.BindArguments, seed: int) -> chains.EarlierValues:
    """Answer by the rule of names: an argument is the id or the name of a thing that an earlier call gives."""
    return chains.EarlierValues(values=values_from_earlier(request.tools))


def write_task(request: tasks.WriteTask, seed: int) -> tasks.WrittenTask:
    """Draw a value for every fact and say the chain by grammar; without a chain, choose one tool and its arguments.

    Raises:
        BadReply: there is no chain, and no tool can be called with values that a user could say.
    """
    rng = derived_random(seed, "task")
    server = request.server
    chain = request.chain or _chosen_chain(server, rng)
    slots = {slot: known_or_drawn_value(server, *use, rng) for slot, use in task_slots(chain, server).items()}
    text = render_task(server, chain, slots, request.hidden_slots, rng)
    return tasks.WrittenTask(text=text, slots=slots, tools=chain.tools)


def _chosen_chain(server: ServerDocument, rng: Random) -> Chain:
    for tool in rng.sample(server.tools, len(server.tools)):
        try:
            # The tool stands last, so a cut at the front takes producers; where one is missed the binding fails.
            return bind_chain(server, [earlier.name for earlier in _with_producers(tool, server.tools)][-5:])
        except Rejected:
            continue
    raise BadReply(f"no tool of {server.name!r} can be called with what a user could say")


def augment_task(request: tasks.AugmentTask, seed: int) -> tasks.AugmentedTask:
    """Say the task by another rule of the grammar, add a constraint, or let the user introduce themselves.

    Raises:
        BadReply: the grammar has no other words for it.
    """
    rng = derived_random(seed, "augment")
    task, language = request.task, request.task.language
    if request.axis == "persona":
        text = f"{phrase('role', rng, language)}{'。' if language == 'zh' else '. '}{task.text}"
        return tasks.AugmentedTask(text=text)
    if request.axis == "complexity":
        text = f"{task.text}{'' if language == 'zh' else ' '}{phrase('constraint', rng, language)}"
        return tasks.AugmentedTask(text=text)
    hidden = task.hidden_parameters
    for _ in range(8):
        if (text := render_task(request.server, request.chain, task.slots | hidden, tuple(hidden), rng)) != task.text:
            return tasks.AugmentedTask(text=text)
    raise BadReply("the grammar knows no other wording")


def score_task(request: tasks.ScoreTask, seed: int) -> tasks.ScoredTask:
    """Score a request: clarity by the facts stated, realism by length and the lack of code, necessity by its tools."""
    facts = [
        is_stated(value, request.text) or value_in_words(value, request.language) in request.text
        for slot, value in request.slots.items()
        if slot not in request.hidden_slots
    ]
    clarity = sum(facts) / len(facts) if facts else 1.0
    length = len(request.text) if request.language == "zh" else len(request.text.split())
    realism = 1.0 if length <= 60 else max(0.0, 1.0 - (length - 60) / 120)
    if re.search(r"[{}<>`\\]|\b\w+\(\)", request.text):
        realism *= 0.6
    reason = f"{sum(facts)} of {len(facts)} facts stated; {length} words or characters; {len(request.tools)} tools"
    necessity = 1.0 if request.tools else 0.0
    return tasks.ScoredTask(reason=reason, clarity=clarity, realism=realism, tool_necessity=necessity)


def answer_as_user(request: AnswerAsUser, seed: int) -> UserReply:
    """Tell the hidden facts, value by value."""
    language = request.task.language
    values = [value_in_words(value, language) for value in request.task.hidden_parameters.values()]
    rng = derived_random(seed, "user")
    joined = ("，" if language == "zh" else ", ").join(values)
    forms = {"en": ("{}.", "It's {}.", "Use {}.", "{}, please."), "zh": ("{}。", "是{}。", "用{}。", "{}，谢谢。")}
    return UserReply(text=rng.choice(forms[language]).format(joined))


def write_follow_up(request: tasks.WriteFollowUp, seed: int) -> tasks.WrittenFollowUp:
    """Draw a value for every new fact and say the last calls by grammar, without the facts that were said before."""
    rng = derived_random(seed, "follow-up")
    server, chain = request.server, request.chain
    first = len(chain.tools) - request.num_calls
    new = {slot: use for slot, use in task_slots(chain, server).items() if slot not in request.slots}
    slots = {slot: known_or_drawn_value(server, *use, rng) for slot, use in new.items()}
    # The last calls are said as a chain of their own, whose bindings count from its first call.
    bindings = tuple(
        binding.model_copy(update={"tool_index": binding.tool_index - first})
        for binding in chain.bindings
        if binding.tool_index >= first and binding.source == "task"
    )
    last_calls = Chain(tools=chain.tools[first:], bindings=bindings)
    # Facts of earlier requests go in as hidden ones: they are not said again.
    text = render_task(server, last_calls, request.slots | slots, tuple(request.slots), rng)
    return tasks.WrittenFollowUp(text=rng.choice(FRAMES[server.language]["links"]).format(text), slots=slots)


def continue_as_user(request: ContinueAsUser, seed: int) -> UserTurn:
    """Go on with the next request if every call that was asked for has succeeded."""
    chain = request.task.chain
    if chain is None or len(read_progress(chain.tools, request.conversation).responses) < len(chain.tools):
        return UserTurn(continues=False)
    return UserTurn(continues=True, text=request.follow_up.text)


def complete_parameters(request: CompleteParameters, seed: int) -> CompletedParameters:
    """Refuse: the parameters of a tool cannot be computed from its name.

    Raises:
        BadReply: always.
    """
    raise BadReply("the document does not say what the tool takes, and the embedded teacher does not invent it")


ANSWERS: Mapping[type[Request[Any]], Callable[[Any, int], Any]] = {
    CompleteParameters: complete_parameters,
    CompleteOutput: complete_output,
    chains.BindArguments: bind_arguments,
    chains.ProposeChains: propose_chains,
    chains.VoteOnChain: vote_on_chain,
    tasks.WriteTask: write_task,
    tasks.AugmentTask: augment_task,
    tasks.ScoreTask: score_task,
    TakeTurn: take_turn,
    AnswerAsUser: answer_as_user,
    tasks.WriteFollowUp: write_follow_up,
    ContinueAsUser: continue_as_user,
    EmulateCall: emulate_call,
    judges.JudgeQueryUnderstanding: judgements.judge_query_understanding,
    judges.JudgePlanning: judgements.judge_planning,
    judges.JudgeResponseUnderstanding: judgements.judge_response_understanding,
    judges.JudgeResponsePlanning: judgements.judge_response_planning,
    judges.JudgeAnswerRelevance: judgements.judge_answer_relevance,
    judges.JudgeAnswerSummary: judgements.judge_answer_summary,
}
"""Request type to the pure function (request, seed) that answers it."""
