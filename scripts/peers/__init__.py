"""Peers of ours: a file for each kind of work that `scripts/bench_peers.py` measures, and a program that answers BFCL.

A peer may run under an interpreter of its own, so each library is imported by the function that needs it.
"""
