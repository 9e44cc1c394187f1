"""The demand on environments to learn from: a certificate in which no attack comes too far."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from astra_jax.config import ConfigError
from synthesis.record_io import read_certificate


def require_certified(directories: Iterable[Path], max_attack_f1: float | None) -> None:
    """Refuse environments without a certificate, or with one that has a fault or an attack above `max_attack_f1`.

    None demands nothing.

    Raises:
        ConfigError: a directory is refused; the message says what to do.
        RecordDirectoryError: a directory or its certificate cannot be read, or it is of other records.
    """
    if max_attack_f1 is None:
        return
    for directory in directories:
        certificate = read_certificate(directory)
        if certificate is None:
            fault = f"has no certificate; make it by `astra records attack {directory}`"
        elif certificate.fault is not None:
            fault = f"is at fault by its certificate: {certificate.fault}; make other environments"
        elif certificate.best_attack_f1 > max_attack_f1:
            fault = (
                f"is solved without skill: the attack {certificate.best_attack!r} has F1 "
                f"{certificate.best_attack_f1:g}; take harder environments, or set a higher max_attack_f1"
            )
        else:
            continue
        raise ConfigError(f"max_attack_f1 = {max_attack_f1:g}: {directory} {fault}")
