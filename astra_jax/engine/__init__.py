"""The decode engine: token ids in, token ids and their log-probs out. It knows no environment, no tool and no chat.

In reading order:
    sampling   one token per slot from hidden states, by keys of slot and position
    step       the compiled programs: read prompts, append given tokens, decode messages, move slots
    decoder    slots of one lot, decoded in lockstep and in ever fewer rows, and what a rollout asks of them
"""
