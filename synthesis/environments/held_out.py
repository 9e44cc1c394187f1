"""The splits beside one training split: worlds for RL, unseen worlds, tools and domains, and worlds to choose on.

training ◄── rl_environments  other worlds of its domains: RL practises where SFT has seen no gold episode
both     ◄── heldout          further worlds
         ◄── selection        as heldout, and apart from it: what is chosen here has seen nothing of heldout
         ◄── heldout_tools    tools that none of training, RL and selection has, of the training's domains
         ◄── heldout_domains  domains that none of them has
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from synthesis.environments.config import EnvironmentsConfig

RL_SPLIT: Final = "rl_environments"
NUM_RL: Final = 640
NUM_HELD_OUT: Final = 256
"""Many, each tried once: what goes wrong in an environment mostly goes wrong in all of its episodes."""
NUM_UNSEEN: Final = 48
NUM_SELECTION: Final = 128
"""Temperatures are chosen by differences in F1 of a few hundredths."""
_SEED_OFFSET: Final = 1_000_000


def held_out_configs(training: EnvironmentsConfig) -> dict[str, EnvironmentsConfig]:
    """Return the config of each further split by the name of its folder beside the training's, in order of synthesis.

    The shares and sizes are the training's, but none has demonstrations or variants. Unseen domains are all of
    `EnvironmentsConfig`'s default domains that the training does not have, in equal shares.

    >>> training = EnvironmentsConfig(seed=0, count=1000, out="runs/train", domains={"library": 1.0})
    >>> splits = held_out_configs(training)
    >>> [(name, split.count, split.unseen) for name, split in splits.items()]
    [('rl_environments', 640, 'worlds'), ('heldout', 256, 'worlds'), ('selection', 128, 'worlds'), \
('heldout_tools', 48, 'tools'), ('heldout_domains', 48, 'domains')]
    >>> str(splits["heldout"].out), "library" in splits["heldout_domains"].domains
    ('runs/heldout', False)

    Raises:
        ValueError: the training has all domains, so that none is unseen; or it is hard, which unseen tools cannot be.
    """
    if training.difficulty == "hard":
        raise ValueError('expected difficulty = "plain", found "hard", for which there are no unseen tools')
    names = (RL_SPLIT, "heldout", "selection", "heldout_tools", "heldout_domains")
    out = {name: training.out.with_name(name) for name in names}
    known: Mapping[str, float] = EnvironmentsConfig.model_fields["domains"].default
    others = {domain: 1.0 for domain in known if domain not in training.domains}
    if not others:
        raise ValueError(f"expected a default domain that is not among {sorted(training.domains)}, found none")
    learnt_from = (training.out, out[RL_SPLIT])
    chosen = (*learnt_from, out["selection"])
    changes: dict[str, dict[str, Any]] = {
        RL_SPLIT: {"count": NUM_RL, "disjoint_from": (training.out,)},
        "heldout": {"count": NUM_HELD_OUT, "disjoint_from": learnt_from},
        "selection": {"count": NUM_SELECTION, "disjoint_from": (*learnt_from, out["heldout"])},
        "heldout_tools": {"count": NUM_UNSEEN, "disjoint_from": chosen, "unseen": "tools"},
        "heldout_domains": {"count": NUM_UNSEEN, "disjoint_from": chosen, "unseen": "domains", "domains": others},
    }
    return {
        name: training.model_copy(
            update={
                "seed": training.seed + number * _SEED_OFFSET,
                "out": out[name],
                "demonstrations": {},
                "augmentation": {},
                **changes[name],
            }
        )
        for number, name in enumerate(names, start=1)
    }
