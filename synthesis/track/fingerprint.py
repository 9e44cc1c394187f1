"""The fingerprint of a track's records: config, inputs, teacher, and code with its prompts."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from synthesis.records import SCHEMA_VERSION
from synthesis.run.code import source_of
from synthesis.run.fingerprint import Fingerprint, digest, flattened
from synthesis.run.json_values import JsonValue
from synthesis.teacher.protocol import Teacher


def synthesis_fingerprint(
    track: str, config: BaseModel, teacher: Teacher, contents: Mapping[str, JsonValue]
) -> Fingerprint:
    """Return the fingerprint of the records of a track, whose pipeline is the module `track`.

    It holds the config without destination, concurrency and prices; `contents`, which stand for the paths
    under the keys of these names; the teacher; and the code of the track and of the teacher, prompts included.
    """
    settings = getattr(config, "teacher", None)
    asked = {} if settings is None else settings.what_decides()
    # A teacher's base classes answer too: a subclass in another module keeps its parent's source in.
    teachers = {kind.__module__ for kind in type(teacher).__mro__ if kind.__module__.startswith("synthesis.")}
    return {
        "schema_version": SCHEMA_VERSION,
        **flattened(
            config.model_dump(mode="json"), leave_out={"out", "concurrency", "teacher", "templates", *contents}
        ),
        **{name: digest(content) for name, content in contents.items()},
        **flattened({"teacher": {"name": teacher.name, **asked}}),
        **source_of(track, *sorted(teachers)),
    }
