"""Whoever answers the questions of synthesis.

    protocol              `Teacher`, `Request`, `BadReply`
    openai                any OpenAI-compatible endpoint, with adaptive_concurrency
    cache, usage          replies that were paid for; tokens and money
    scripted              a queue of replies, for tests
The embedded teacher stands in `synthesis.procedural`, above both tracks.
"""
