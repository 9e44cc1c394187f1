"""The demand on environments that RL learns from: a whole certificate, and a bound on attacks."""

from __future__ import annotations

from pathlib import Path

from astra_jax.config import ConfigError
from synthesis.record_io import check_shards, read_card, read_certificate
from synthesis.records import ATTACKS, Certificate


def require_certified(directory: Path, max_attack_f1: float) -> None:
    """Refuse environments without a whole certificate, or with a fault or an attack above `max_attack_f1`.

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
    else:
        return
    raise ConfigError(f"max_attack_f1 = {max_attack_f1:g}: {directory} {fault}")


def _is_whole(found: Certificate, count: int) -> bool:
    is_ours = found.source == "environments" and found.gold is not None and found.canary_leaks is not None
    has_all = set(ATTACKS) <= found.attacks.keys() and found.num_environments + found.num_left_out == count
    shares = (share for each in found.policies.values() for share in each.model_dump().values())
    return is_ours and has_all and all(0 <= share <= 1 for share in shares)
