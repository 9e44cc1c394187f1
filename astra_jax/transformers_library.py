"""HuggingFace's `transformers`, without torch: it reads and writes configs and templates.

Decided: docs/decisions/packaging.md, “Configs and templates are read by transformers, weights and tokens by our own
code”.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def transformers_library() -> Any:
    """Return `transformers`, loaded when it is first used, since loading takes seconds.

    It reports errors alone: its warnings are about models in torch, which we do not run, and a bar for each small model
    would hide the lines of a stage.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return importlib.import_module("transformers")
