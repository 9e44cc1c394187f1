"""HuggingFace's `transformers`: what reads and writes its configs, chat templates and generation settings. No torch.

Decided: docs/decisions/packaging.md, “Configs and templates are read by transformers, weights and tokens by our own
code”.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def transformers_library() -> Any:
    """Return `transformers`, loaded where it is first used: it takes seconds, so no command starts with it.

    It reports errors alone: its warnings are of models in torch, which we run none of.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    return importlib.import_module("transformers")
