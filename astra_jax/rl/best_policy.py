"""The best policy of a run on held-out environments: a policy folder of its own, which no retention rule removes.

OUT/best -> best_00000040              a link, replaced by one rename when the folder is whole
OUT/best_00000040/                     a policy folder
    held_out.json                      {"step": 40, "f1": 0.61}
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
from jax.experimental import multihost_utils

from astra_jax.mesh.hosts import gather_bytes_from_hosts
from astra_jax.model.config import Params


class Best(NamedTuple):
    """The step and the score of the best policy."""

    step: int
    """Updates that the policy has seen."""
    f1: float
    """Its F1 on the held-out environments."""


class BestPolicy:
    """The best policy so far; where there are several hosts, each makes every call."""

    def __init__(self, out: Path, save: Callable[[Path, Params], None]):
        """Read the best policy of an earlier command in `out`; `save` writes weights as a policy folder."""
        self._out, self._save = out, save
        self.best = _read(out / "best" / "held_out.json")

    def keep(self, best: Best, params: Params) -> bool:
        """Keep a policy if it is better than the best so far; return whether it was.

        A killed process leaves the earlier one in place. The best may be of a later step than the one that the run
        resumed from.

        Raises:
            OSError: the disk is full or not writable.
        """
        if self.best is not None and best.f1 <= self.best.f1:
            return False
        self.best = best
        folder = self._out / f"best_{best.step:08d}"
        self._save(folder, params)
        if jax.process_index() == 0:
            (folder / "held_out.json").write_text(json.dumps(best._asdict()) + "\n", encoding="utf-8")
            link = self._out / ".best"
            link.unlink(missing_ok=True)
            link.symlink_to(folder.name, target_is_directory=True)
            os.replace(link, self._out / "best")
            for other in self._out.glob("best_*"):
                if other != folder:
                    shutil.rmtree(other)
        multihost_utils.sync_global_devices(f"best policy in {folder}")
        return True


def _read(path: Path) -> Best | None:
    """Read the file of the first host for all: on a disk that shows files late they could disagree."""
    text = path.read_bytes() if path.is_file() else b""
    if jax.process_count() > 1:
        text = gather_bytes_from_hosts(text)[0]
    return Best(**json.loads(text)) if text else None
