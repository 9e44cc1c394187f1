"""The errors of synthesis.

SynthesisError
├── InputUnusable            a file, model or package that a config or a command names is missing or unreadable
├── SourceMissing            there are no tool documents at the place that the config names
├── NothingKept              a stage read something and kept nothing
│   └── NoToolDocuments      no server is left to work on
├── PlanImpossible           the shares of a config contradict one another                               usage
├── DestinationRefused       something else lies where a command is to write                                  usage
│   └── MadeOtherwise        an earlier result there has another config, inputs or code
├── AnotherRun               another run is at work in the same folder                                        usage
├── PlaceUnusable            a bucket cannot be read or written
├── TakenOver                a later command has begun in the same place of a bucket
├── RecordDirectoryError     a record directory is missing, damaged or of another kind
├── ExportImpossible         records have no form in the requested format
├── MessageRefused           a message or tool in OpenAI's form cannot be taken as it is
├── JournalError             a journal of finished items is damaged, or cannot be written
├── TeacherUnavailable       the teacher cannot be asked at all just now
├── ReplyFileError           the file of a teacher's replies is damaged, or cannot be written
├── TokenizerMissing         there is no tokenizer at the place of the student's
├── ToolServerUnavailable    an MCP server does not start or answer
└── of one item, which is rejected or tried again, while the run goes on
    ├── Rejected
    ├── BadReply
    ├── CompositionError
    ├── SchemaUnconvertible
    └── ToolServerDied
"""

from __future__ import annotations

from typing import ClassVar


class SynthesisError(Exception):
    """The root of our errors: the message names the fault and the remedy."""

    is_usage: ClassVar[bool] = False
    """Whether the config or the command line is at fault, and not the files that it names."""


class InputUnusable(SynthesisError):
    """A file, model or package that a config or a command names is missing or cannot be read; the message names it."""
