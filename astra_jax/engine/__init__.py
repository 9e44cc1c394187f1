"""The decode engine: token ids in, token ids and their log-probs out. It knows no environment, no tool and no chat.

In reading order:
    sampling   one token per slot from hidden states, by keys of slot and position
    step       the three compiled programs: read prompts, append given tokens, decode messages
    decoder    slots of one policy, decoded in lockstep, and what a rollout asks of them
"""
