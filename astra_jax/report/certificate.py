"""The files of a certificate: `certificate.json`, and a card that shows it, `certificate.html`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from astra_jax.report.page import is_page, page_environment
from synthesis.record_io import CERTIFICATE
from synthesis.records import Certificate
from synthesis.run.destination import require_file_destination, whole_file

_PAGE: Final = "certificate.html"


def require_place(out: Path) -> None:
    """Refuse a folder in which no certificate can be written.

    Raises:
        DestinationRefused: nothing can be written there, or another file is in the place of one of the two.
    """
    require_file_destination(out / CERTIFICATE, "certificate", lambda path: b'"attack_code"' in path.read_bytes())
    require_file_destination(out / _PAGE, "card of a certificate", is_page)


def write_certificate(certificate: Certificate, out: Path, *, name: str) -> None:
    """Write a certificate and its card into a folder; an earlier one is replaced. `name` is that of the set.

    Raises:
        DestinationRefused: as `require_place`.
        OSError: the disk is full or not writable.
    """
    require_place(out)
    out.mkdir(parents=True, exist_ok=True)
    template = page_environment().get_template("certificate.html.jinja")
    html = template.render(title="Certificate of environments", name=name, certificate=certificate)
    for path, text in ((out / CERTIFICATE, certificate.model_dump_json(indent=2) + "\n"), (out / _PAGE, html)):
        with whole_file(path) as file:
            file.write_text(text, encoding="utf-8")
