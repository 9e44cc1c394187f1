"""Record directories of each kind, for the tests of every format."""

import pytest

from synthesis.record_io import write_records
from tests.synthesis.export.test_export import RECORDS


@pytest.fixture
def directories(tmp_path):
    for kind, records in RECORDS.items():
        made_with = {"seed": 3, "count": len(records)}
        write_records(tmp_path / kind, records, kind=kind, config_hash="c0ffee", made_with=made_with)
    return {kind: tmp_path / kind for kind in RECORDS}
