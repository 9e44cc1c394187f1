"""Qwen3's chat format, byte for byte.

format       messages into segments, each with who wrote it
tokenizer    byte-level BPE, Qwen3's own or a tiny one
tool_calls   the tool calls of an assistant message
template     a checkpoint's own chat template, checked against ours
"""
