"""The errors of synthesis.

SynthesisError
├── KnowledgeError           a knowledge file cannot be read
├── SourceMissing            there are no tool documents at the place that the config names
├── NothingKept              a stage read something and kept nothing
│   └── NoToolDocuments      no server is left to work on
├── PlanImpossible           the shares of a config contradict one another                               usage
├── DestinationRefused       something else lies where a command is to write                                  usage
│   └── MadeOtherwise        an earlier result there has another config, inputs or code
├── AnotherRun               another run is at work in the same folder                                        usage
├── RecordDirectoryError     a record directory is missing, damaged or of another kind
├── ExportImpossible         records have no form in the requested format
├── MessageRefused           a message or tool in OpenAI's form cannot be taken as it is
├── JournalError             a journal of finished items is damaged, or cannot be written
├── TeacherUnavailable       the teacher cannot be asked at all just now
├── ReplyFileError           the file of a teacher's replies is damaged, or cannot be written
├── PackageNotHere           a package that tools may import is not installed where their code is checked
├── TokenizerMissing         there is no tokenizer at the place of the student's
├── EmbeddingModelMissing    there is no embedding model at its place, or no library that reads it
├── BenchmarkUnreadable      a benchmark file is missing, cannot be read, or holds no text
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
