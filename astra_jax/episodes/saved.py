"""Finished episodes as JSON for a checkpoint, and back, equal in every token and figure.

The JSON shares the lists of the episode, which no longer change: a long one is not copied at every step. Kept ids alone
are, of which an untruncated episode has none.
"""

from __future__ import annotations

from array import array
from typing import Any

from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from synthesis.records import Environment, JsonObject


def saved_episode(episode: Episode) -> JsonObject:
    """Return an episode without its environment, of which the id and the names of the tools shown are kept."""
    return {
        "environment_id": episode.environment.id,
        "tools": [tool.document.name for tool in episode.tools],
        "ledger": vars(episode.ledger) | {"kept_ids": episode.ledger.kept_ids.tolist()},
        "state": episode.state,
        "met_expectation": episode.met_expectation,
        "num_turns": episode.num_turns,
        "outcomes": [dict(vars(outcome)) for outcome in episode.outcomes],
        "stop_reason": episode.stop_reason,
        "final_text": episode.final_text,
        "rolled_out": episode.rolled_out,
    }


def restored_episode(saved: dict[str, Any], environment: Environment) -> Episode:
    """Return the episode that was saved.

    Raises:
        KeyError: the environment has not the tools that the episode was shown: it is another one.
    """
    by_name = {tool.document.name: tool for tool in environment.all_tools}
    return Episode(
        environment=environment,
        tools=tuple(by_name[name] for name in saved["tools"]),
        ledger=TokenLedger(**saved["ledger"] | {"kept_ids": array("i", saved["ledger"]["kept_ids"])}),
        state=saved["state"],
        met_expectation=saved["met_expectation"],
        num_turns=saved["num_turns"],
        outcomes=[ToolOutcome(**outcome) for outcome in saved["outcomes"]],
        stop_reason=saved["stop_reason"],
        final_text=saved["final_text"],
        rolled_out=saved["rolled_out"],
    )
