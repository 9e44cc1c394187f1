"""The decode engine: token ids in, token ids and their log-probs out. It knows no environment, no tool and no chat.

In reading order:
    interface  what whoever rolls out asks of whoever decodes
    sampling   one token per row from its logits, by keys of slot and position
    penalties  what is taken from the logits of what was said before
    programs   the compiled programs: read given tokens, sample in several rows, score one
    pages      which page of the cache holds what, and who refers to it
    schedule   whose tokens are read next, whose message goes on, and in which rows
    page_lists whether the pages behind a call's rows are read as one list
    device     the pages on the devices, and the calls that a schedule asks for
    call_clock how long calls have been under way
    paged      the decoder that callers await: it drives the four above
    http       a decoder that asks a server
    teacher_forced  one sequence that was sampled before, scored by the same programs
"""
