"""Words and random tokens whose lexemes are compared with PostgreSQL's."""

import random
import re
import sysconfig
from pathlib import Path

_SUFFIXES = ("s", "ed", "ing", "ly", "ness", "ation", "ational", "ful", "ize", "ies", "eed", "'s")
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    "_",
    "eE0123456789",
    "éèüßñçøåÉÜİı",
    "бвгдежийклмнСЛОВА",
    "αβγδσςΣΩ",
    "कखगति",
    "กขคงำ้",
    "ひらがなカタカナ",
    "\u0301\u0308\u0327",
    "٣५²½Ⅷ",
)


def words(count: int) -> list[str]:
    """Words of Python's library and other forms of them, each once."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            source = path.read_text(errors="replace")
            found |= dict.fromkeys(re.findall(r"[A-Za-z]{2,24}", source))
        if len(found) > count:
            break
    forms = dict.fromkeys(word + each for word in list(found)[:3000] for each in _SUFFIXES[:-1])
    return list(forms | found)[:count]


def random_tokens(count: int) -> list[str]:
    """Runs of letters, digits, marks and underscores, of several scripts."""
    dice = random.Random(15)  # noqa: S311 - no secret
    found: list[str] = []
    while len(found) < count:
        alphabets = dice.choices(_ALPHABETS, (8, 4, 6, 4, 4, 2, 2, 2, 1, 1, 1, 1, 0.3), k=3)
        pieces = [
            "".join(dice.choices(dice.choice(alphabets), k=dice.randint(1, 5)))
            for _ in range(dice.randint(1, 4))
        ]
        found.append("".join(pieces))
    return found
