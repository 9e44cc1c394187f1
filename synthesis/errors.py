"""The errors of synthesis.

SynthesisError
├── KnowledgeError           a knowledge file cannot be read
├── SourceMissing            no tool documents are where they were said to be
├── NothingKept              a stage read something and kept nothing
│   └── NoToolDocuments      no server is left to work on
├── PlanImpossible           the shares of a config contradict one another                               usage
├── DestinationRefused       something else lies where a command is to write                                  usage
│   └── MadeOtherwise        what lies there was made with another config, inputs or code
├── AnotherRun               another run is at work in the same folder                                        usage
├── RecordDirectoryError     a record directory is missing, damaged or of another kind
├── ExportImpossible         records have no form in the format that was asked for
├── RowUnreadable            a line of a file of rows is none
├── MessageRefused           a message or tool in OpenAI's form cannot be taken as it is
├── JournalError             a journal of finished items is damaged, or cannot be written
├── TeacherUnavailable       the teacher cannot be asked at all just now
├── ReplyFileError           the file of a teacher's replies is damaged, or cannot be written
├── WorkersUnavailable       the Ray cluster is not there, or loses its workers
├── PackageNotHere           a package that tools may import is not installed where their code is checked
├── TokenizerMissing         there is no tokenizer where the student's was said to be
├── EmbeddingModelMissing    there is no embedding model where one was said to be, or nothing that reads it
├── ToolServerUnavailable    an MCP server does not start or answer
└── what concerns one item, which is rejected or tried again, while the run goes on
    ├── Rejected
    ├── BadReply
    ├── CompositionError
    ├── SchemaUnconvertible
    └── ToolServerDied
"""

from __future__ import annotations

from typing import ClassVar


class SynthesisError(Exception):
    """The root: the message says what was expected, what was found, and what to do."""

    is_usage: ClassVar[bool] = False
    """Whether the config or the command line is at fault by itself, whatever it names."""
