"""Whoever answers the questions of synthesis.

    protocol              `Teacher`, `Request`, `BadReply`
    config                which models are asked, and within what limits
    status_rules          what an HTTP status means for the question, and for the run
    endpoint              one endpoint and its completions, with adaptive_concurrency
    lenient_json, reading from a model's text to a typed reply
    turn                  the agent's turns: reasoning, text, tool calls
    asking                from a typed question to the body of a call
    budget                what a run may spend
    openai                the teacher: a typed question, its reply
    cache, usage          replies that were paid for; tokens and money
    scripted              a queue of replies, for tests
The embedded teacher stands in `synthesis.procedural`, above both tracks.
"""
