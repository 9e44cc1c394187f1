"""The lean peer of the benchmark against peers."""

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_the_lean_peer_computes_the_same_with_its_cache_as_without(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(SCRIPTS)
    from peers.lean import Qwen3
    from peers.qwen3 import Shape, hf_model, our_config

    shape, threads = Shape(vocabulary=64, layers=2), torch.get_num_threads()
    try:
        model = Qwen3(shape, most_tokens=12)
    finally:
        torch.set_num_threads(threads)
    sizes = {sum(each.numel() for each in one.parameters()) for one in (model, hf_model(shape))}
    assert sizes == {our_config(shape).num_parameters}
    tokens_BT = torch.randint(0, 64, (3, 12))
    with torch.inference_mode():
        whole_BTV = model.logits(model(tokens_BT))
        cache = model.empty_cache(3, 12)
        parts = [(0, 5), (5, 6), (6, 7), (7, 12)]
        cached = [model.logits(model(tokens_BT[:, first:stop], cache, first)) for first, stop in parts]
    torch.testing.assert_close(torch.cat(cached, 1), whole_BTV, rtol=1e-5, atol=1e-5)
