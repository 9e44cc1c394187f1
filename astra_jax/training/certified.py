"""The demand on environments to learn from: a certificate in which no attack comes too far."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from astra_jax.config import ConfigError
from synthesis.record_io import read_certificate


def require_certified(directories: Iterable[Path], max_attack_f1: float | None) -> None:
    """Refuse environments without a certificate, or with a fault or an attack above `max_attack_f1`; None refuses none.

    Raises:
        ConfigError: a directory is refused; the message says what to do.
        RecordDirectoryError: as `read_certificate`.
    """
    for directory in directories if max_attack_f1 is not None else ():
        if (found := read_certificate(directory)) is None:
            fault = f"has no certificate; make it by `astra records attack {directory}`"
        elif found.fault is not None:
            fault = f"is at fault by its certificate: {found.fault}; make other environments"
        elif max_attack_f1 is not None and found.best_attack_f1 > max_attack_f1:
            fault = f"is solved without skill: the attack {found.best_attack!r} has F1 {found.best_attack_f1:g}; "
            fault += "take harder environments, or set a higher max_attack_f1"
        else:
            continue
        raise ConfigError(f"max_attack_f1 = {max_attack_f1:g}: {directory} {fault}")
