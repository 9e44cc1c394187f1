"""The teacher answers the questions of synthesis.

    protocol              `Teacher`, `Request`, `BadReply`
    config                which models are asked, and within what limits
    status_rules          what an HTTP status means for the question, and for the run
    client                the HTTP client, which repeats calls, behind a checked address and key
    endpoint              one endpoint and its completions, with adaptive_concurrency
    lenient_json          JSON inside a model's text
    reading               from a model's text to a typed reply
    completion            the parts of a chat completion
    turn                  the agent's turns: reasoning, text, tool calls
    asking                from a typed question to the body of a call
    budget                what a run may spend
    openai                the teacher: a typed question, its reply
    cache                 the file of replies that were paid for
    usage                 tokens and money by kind of question
    scripted              a queue of replies, for tests
The embedded teacher stands in `synthesis.procedural`, above both tracks.
"""
