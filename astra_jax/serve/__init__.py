"""A policy behind HTTP: token ids in, token ids and their log-probs out.

In reading order:
    request  one body of `POST /inference/v1/generate`: what is taken, what is refused, and how it is answered
    policy   a checkpoint and the decoder that serves it
    server   the endpoints, their limits, and the end
"""
