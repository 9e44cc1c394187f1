"""The pre-training of the tiny base, and the made-up worlds that it reads.

Decided: docs/decisions/tiny.md, “The quickstart starts from a shipped base that was pre-trained on made-up worlds”.
"""
