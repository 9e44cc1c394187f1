"""The learner, from records to HuggingFace weights, and the `astra` command. In reading order:

config, errors          TOML files into typed configs; one tree of errors
chat/                   Qwen3's chat format, tokenizer and tool calls
model/                  Qwen3, attention, KV cache, log-probs, sharding
mesh/                   hosts and devices
checkpoints/            Orbax and HuggingFace, both ways
engine/                 token ids in, token ids out
episodes/               a policy in environments: ledger, tools, F1 reward
training/               what SFT and RL share around a step
sft/, rl/               a training step on one screen each: `train.py`
evaluate/, plan/, report/, recipes/, cli/

Decided: docs/decisions/packaging.md, “Folders of a package have an order, and imports run down it”.
"""
