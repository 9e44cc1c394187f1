"""Qwen3's chat format, byte for byte.

format      The Qwen3 chat format: messages and tool documents in, the exact text the model reads out.
tokenizer   The tokenizer: text to token ids and back, with the Qwen3 control tokens.
tool_calls  The parser of an assistant message: its reasoning, its text and its tool calls.
template    The chat template of a checkpoint, compared with our rendering before a run learns or samples a token.
"""
