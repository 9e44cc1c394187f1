"""The key of the mock endpoint, for every test of this folder."""

import pytest

pytest.importorskip("openai", reason="needs the extra `openai`")

from tests.synthesis.teacher.asking import key  # noqa: F401 - a fixture
