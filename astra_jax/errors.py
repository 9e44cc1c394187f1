"""The errors of the learner.

    AstraError
    ├── UsageError                the config or the command line is at fault by itself                       usage
    │   └── ConfigError           a config: no file, no TOML, an unknown key, a wrong value
    │       └── ChatFormatDiffers   a checkpoint's chat template or tokenizer is not Qwen3's
    ├── CheckpointError           a checkpoint is absent, damaged, or of another model
    ├── HFCheckpointError         a HuggingFace folder does not hold the model that was expected
    ├── ProvenanceError           the provenance of a checkpoint is damaged
    ├── TokenizerError            a tokenizer is missing or is not a Qwen3 one
    ├── ConversationUnreadable    a line of a file is not a conversation
    ├── RunUnreadable             a run, an evaluation or a log of episodes is not there, or damaged
    ├── CompilerMissing           the TPU compiler is not installed
    ├── PromptTooLong             a prompt does not fit into the rollout's cache
    ├── DecoderError              a request to a decoder is beyond its limits
    ├── CannotServe               the server of a policy cannot start
    ├── RequestRefused            a request to that server is refused
    ├── HarnessMissing            a benchmark's official harness is not there, or cannot be had
    ├── BenchmarkFailed           a benchmark did not come to its end, lost answers, or left files that cannot be read
    │   └── ProgramFailed         a program of a harness was run and did not end well
    ├── HostFailed                another host of a job has failed, is gone, or was never found
    ├── NotHeld                   a row of a rehearsal does not hold
    ├── HostsEnd                  a signal at one of several hosts ends the work of all; a run saves
    ├── NotFinite                 too many steps in a row had no finite loss or gradient
    ├── BatchFillingStalled       the policy's groups no longer vary
    └── QuickstartFailed          the result of a stage of the quickstart did not pass its check

`KeyboardInterrupt`, `GivenUp` and `Terminated` (termination.py) are not errors: the user has ended the run.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import ValidationError


class AstraError(Exception):
    """The root of our errors; a message names the fault, its place and the remedy."""

    is_usage: ClassVar[bool] = False
    """Whether the config or the command line is at fault by itself: the command then ends with 2, else with 1."""


class UsageError(AstraError):
    """The config or the command line is at fault by itself."""

    is_usage = True


class RunUnreadable(AstraError):
    """A run, an evaluation or a log of episodes is not there, or damaged; the message says where and what to do."""


def first_fault(error: ValidationError) -> str:
    """Return the first fault of a document: its place and the reason."""
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc'])) or 'the whole document'}: {fault['msg']}"
