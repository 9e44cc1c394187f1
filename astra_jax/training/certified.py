"""The demand on environments that RL learns from: a whole certificate, and a bound on attacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from astra_jax.config import ConfigError
from synthesis.record_io import RecordSource, check_shards, read_card, read_certificate
from synthesis.records import ATTACKS, Certificate, Environment, SimilarityBand


def require_certified(directory: Path, max_attack_f1: float, shown: Mapping[SimilarityBand, int]) -> None:
    """Refuse environments without a whole certificate, or with a fault or an attack above `max_attack_f1`.

    Attacks are shown all distractors, so a policy must be as well: among fewer tools a guess is right more often.
    `shown` has the most distractors of each band that a rollout shows.

    Raises:
        ConfigError: the directory is refused; the message says what to do.
        RecordDirectoryError: as `check_shards` and `read_certificate`.
    """
    check_shards(directory)
    if (found := read_certificate(directory)) is None or not _is_whole(found, read_card(directory).count):
        fault = f"has no certificate of all attacks on all of it; run `astra records attack {directory}`"
    elif found.fault is not None:
        fault = f"is not fit to train on: {found.fault}; make other environments"
    elif found.best_attack_f1 > max_attack_f1:
        fault = f"is solved without skill: the attack {found.best_attack!r} has F1 {found.best_attack_f1:g}; "
        fault += "take harder environments, or set a higher max_attack_f1"
    elif hidden := _most_hidden(directory, shown):
        fault = f"has {hidden}, and its certificate is of all distractors; raise irrelevant_per_band to show them"
    else:
        return
    raise ConfigError(f"max_attack_f1 = {max_attack_f1:g}: {directory} {fault}")


def _most_hidden(directory: Path, shown: Mapping[SimilarityBand, int]) -> str:
    """Say how many distractors of a band an environment has, if they are more than are shown."""
    most = Counter[SimilarityBand]()
    for environment in RecordSource(directory, Environment):
        most |= Counter(irrelevant.band for irrelevant in environment.irrelevant_tools)
    hidden = [f"up to {count} of the band {band}" for band, count in most.items() if count > shown.get(band, 0)]
    return " and ".join(sorted(hidden))


def _is_whole(found: Certificate, count: int) -> bool:
    is_ours = found.source == "environments" and found.gold is not None and found.canary_leaks is not None
    has_all = set(ATTACKS) <= found.attacks.keys() and found.num_environments + found.num_left_out == count
    shares = (share for each in found.policies.values() for share in each.model_dump().values())
    return is_ours and has_all and all(0 <= share <= 1 for share in shares)
