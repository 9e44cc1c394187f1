"""The files of a certificate: `certificate.json`, and a card that shows it, `certificate.html`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from astra_jax.report.page import is_page, page_environment
from astra_jax.report.tables import Cell, Row, Table
from synthesis.record_io import CERTIFICATE
from synthesis.records import AttackFigures, Certificate
from synthesis.run.destination import require_file_destination, whole_file

_CARD: Final = "certificate.html"
_POLICIES: Final = {
    "gold": ("Gold", "the policy that must succeed"),
    "empty": ("Empty", "ends without a word"),
    "refuse": ("Refuse", "refuses every question"),
    "ask_back": ("Ask back", "asks every question back"),
    "copy": ("Copy", "says the question"),
    "constant": ("Constant", "says the most frequent answers"),
    "lexical": ("Lexical", "matches the words of question and documents"),
    "told_names": ("Told the names", "is told the names in the question, and reads no other word"),
    "style": ("Style", "told the names; picks tools by the style of their documents"),
    "schema": ("Schema", "told the names; picks tools by their parameters alone"),
    "everything": ("Everything", "told the names; calls every tool with all of them"),
}
"""Name of a policy to its label and to its lack of skill."""
_SHARE: Final = "{:.0%}"  # without decimals three columns fit on a phone
_LANGUAGES: Final = {"en": "English", "zh": "Chinese"}


def write_certificate(certificate: Certificate, out: Path, *, name: str) -> None:
    """Write a certificate and its card into a folder; an earlier one is replaced. `name` is that of the set.

    Raises:
        DestinationRefused: another file is in the place of one of them.
        OSError: the disk is full or not writable.
    """
    out.mkdir(parents=True, exist_ok=True)
    require_file_destination(out / CERTIFICATE, "certificate", _is_certificate)
    require_file_destination(out / _CARD, "card of a certificate", is_page)
    with whole_file(out / CERTIFICATE) as file:
        file.write_text(certificate.model_dump_json(indent=2) + "\n", encoding="utf-8")
    with whole_file(out / _CARD) as file:
        file.write_text(card(certificate, name=name), encoding="utf-8")


def _is_certificate(path: Path) -> bool:
    return b'"attack_code"' in path.read_bytes()


def card(certificate: Certificate, *, name: str) -> str:
    """Return the HTML page of a certificate."""
    ranked = sorted(certificate.attacks.items(), key=lambda item: -item[1].f1)
    policies = [*([("gold", certificate.gold)] if certificate.gold is not None else []), *ranked]
    columns = [Cell("F1", "95 % interval"), Cell("Solved whole", "95 % interval"), Cell("Answers right")]
    shown = Table("", columns, [Row(Cell(*_POLICIES[name]), _cells(figures)) for name, figures in policies])
    blind = Table(
        "",
        [Cell("Accuracy"), Cell("Chance"), Cell("Above"), Cell("Own tools")],
        [
            Row(
                Cell(_LANGUAGES[language], f"by {features}"),
                [
                    *(Cell(_SHARE.format(share)) for share in (found.accuracy, found.chance)),
                    Cell(f"{100 * found.above_chance:+.1f} points"),
                    Cell(f"{found.num_tools:,}"),
                ],
            )
            for features, by_language in certificate.blind_accuracy.items()
            for language, found in by_language.items()
        ],
    )
    template = page_environment().get_template("certificate.html.jinja")
    best = _POLICIES[certificate.best_attack][0]
    return template.render(
        title="Certificate of environments", name=name, certificate=certificate, best=best, shown=shown, blind=blind
    )


def _cells(figures: AttackFigures) -> list[Cell]:
    return [
        Cell(f"{figures.f1:.3f}", f"{figures.low:.3f}–{figures.high:.3f}"),
        Cell(
            _SHARE.format(figures.solved), f"{_SHARE.format(figures.solved_low)}–{_SHARE.format(figures.solved_high)}"
        ),
        Cell(_SHARE.format(figures.answers)),
    ]
