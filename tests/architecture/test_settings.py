"""The page of settings says what the settings are."""

from pathlib import Path

from settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_every_setting_is_on_its_page_with_its_default() -> None:
    lines = PAGE.read_text().splitlines()
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, "") else f"`{field.default}`"
        assert f"| `PERDURE_{name.upper()}` | {default} | {field.description} |" in lines
