"""The same work by ours and by its peers with a small Qwen3 on this CPU, in turns: one JSON line.

    python scripts/bench_peers.py decode --against lean hf
    python scripts/bench_peers.py grpo --against lean trl tunix \\
        --python trl=/path/to/trl/bin/python --python tunix=/path/to/tunix/bin/python

    decode       32 prompts of 256 tokens, 256 tokens after each, greedy           lean, hf, tunix
    multi-turn   32 episodes of four messages and three tool calls of 50 ms        lean, trl, tunix
    grpo         8 x 8 answers of 128 tokens, their reward, one update             lean, trl, tunix
    logprobs     4 sequences of 4,096 tokens under a vocabulary of 151,936         lean, torch, trl, tunix
    train-step   8 rows of 1,024 tokens: loss, gradients, clipping, AdamW          lean, hf, tunix

Weights and prompts are random, in float32, and no token ends a message early. `scripts/peers/` has one file for each
kind of work. The peers:

    lean     plain torch in one file (`scripts/peers/lean.py`), with a cache of the full length from the start
    hf       transformers with its default attention; it decodes with a static cache, not compiled, which is the
             fastest of its ways on a CPU
    torch    transformers' model; log-probs are the logits of one sequence less their `logsumexp`
    trl      TRL 1.16.0: its GRPO trainer, the trainer's tool loop, its head that never makes all logits
    tunix    google-tunix 0.1.7: its GRPO learner, its sampler, its trainer

A peer that wants other packages than ours gets an interpreter of its own by `--python`:

    python3.11 -m venv /path/to/trl && /path/to/trl/bin/pip install torch==2.13.0 transformers==5.23.0 trl==1.16.0
    python3.11 -m venv /path/to/tunix && /path/to/tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2

Each system runs in a process of its own with as many threads as this process has cores. `ratio` says, in wall and in
CPU seconds, how many times as long as ours each peer takes.
"""

from peers import decode, grpo, logprobs, multi_turn, train_step
from peers.taking_turns import main

if __name__ == "__main__":
    main(
        __doc__ or "",
        {
            "decode": decode.WORK,
            "multi-turn": multi_turn.WORK,
            "grpo": grpo.WORK,
            "logprobs": logprobs.WORK,
            "train-step": train_step.WORK,
        },
    )
