"""The embedded teacher as a user with more to ask for."""

from __future__ import annotations

from synthesis.procedural.agent_turns import read_progress
from synthesis.procedural.argument_values import known_or_drawn_value
from synthesis.procedural.task_grammar import FRAMES, render_task
from synthesis.prompts.simulated_user import ContinueAsUser, UserTurn
from synthesis.prompts.tasks import WriteFollowUp, WrittenFollowUp
from synthesis.records import Chain
from synthesis.track.seeds import derived_random
from synthesis.trajectories.chains import task_slots


def write_follow_up(request: WriteFollowUp, seed: int) -> WrittenFollowUp:
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
    return WrittenFollowUp(text=rng.choice(FRAMES[server.language]["links"]).format(text), slots=slots)


def continue_as_user(request: ContinueAsUser, seed: int) -> UserTurn:
    """Go on with the next request if every call that was asked for has succeeded."""
    chain = request.task.chain
    if chain is None or len(read_progress(chain.tools, request.conversation).responses) < len(chain.tools):
        return UserTurn(continues=False)
    return UserTurn(continues=True, text=request.follow_up.text)
