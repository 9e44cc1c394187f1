"""The files of a certificate: `certificate.json`, and a card that shows it, `certificate.html`."""

from __future__ import annotations

from pathlib import Path

from astra_jax.report.page import is_page, page_environment
from synthesis.record_io import CERTIFICATE
from synthesis.records import Certificate
from synthesis.run.destination import require_file_destination, write_whole


def places(out: Path) -> tuple[Path, Path]:
    """Return the files of a certificate and its card in a folder; a `DestinationRefused` says that it is not free."""
    file, page = out / CERTIFICATE, out / "certificate.html"
    require_file_destination(file, "certificate", lambda path: b'"attack_code"' in path.read_bytes())
    require_file_destination(page, "card of a certificate", is_page)
    return file, page


def write_certificate(certificate: Certificate, out: Path, *, name: str) -> None:
    """Write a certificate and its card into a folder; an earlier one is replaced. `name` is that of the set.

    Raises:
        DestinationRefused: another file is in the place of one of them.
        OSError: the disk is full or not writable.
    """
    files = places(out)
    template = page_environment().get_template("certificate.html.jinja")
    html = template.render(title="Certificate of environments", name=name, certificate=certificate)
    out.mkdir(parents=True, exist_ok=True)
    for path, text in zip(files, (certificate.model_dump_json(indent=2) + "\n", html), strict=True):
        write_whole(path, text)
