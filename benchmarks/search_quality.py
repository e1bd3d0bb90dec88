"""`python -m benchmarks.search_quality`: docstring to code, our analyzer beside the reference's.

Each function is a message without its docstring; the first paragraph of the docstring is the query
that has to find it. The functions are those of the packages that the lock file installs, or with
`--corpus library` of Python's own library. Nothing is tuned on them, and the draw is fixed.
"""

import argparse
import ast
import random
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from stores.search.analysis import AnalyzerName, analyzer_named
from stores.search.bm25 import Bm25, ranked

SHOWN = 10
ROUNDS = 1000
Corpus = Literal["installed", "library"]


def sources(corpus: Corpus) -> list[Path]:
    """Files with Python code that is no test."""
    home = Path(sysconfig.get_path("purelib" if corpus == "installed" else "stdlib"))
    paths = [path.relative_to(home) for path in sorted(home.rglob("*.py"))]
    apart = ("test", "site-packages")
    return [home / path for path in paths if not any(word in str(path) for word in apart)]


def pairs(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """First paragraph of a docstring, and the function without it."""
    for path in paths:
        try:
            tree = ast.parse(path.read_text())
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            words = ast.get_docstring(node) or ""
            sentence = words.split("\n\n")[0].replace("\n", " ")
            node.body = node.body[1:]
            if len(sentence.split()) > 4 and node.body:
                yield sentence, ast.unparse(node)[:2000]


def hits(
    documents: Sequence[str], queries: Sequence[tuple[int, str]], analyzer: AnalyzerName
) -> list[bool]:
    """Of each query whether the answer is among the first ten."""
    terms = analyzer_named(analyzer)
    counted = [Counter(terms.terms(each)) for each in documents]
    found: list[bool] = []
    for wanted, query in queries:
        asked = terms.query_terms(query)
        best = ranked(asked, counted, Bm25())[:SHOWN] if asked else []
        found.append(wanted in {index for index, _ in best})
    return found


def measured(corpus: Corpus, documents: int, queries: int) -> tuple[float, float, float, float]:
    """hit@10 of both, their ratio, and the lower end of its 95 % interval by bootstrap."""
    dice = random.Random(11)  # noqa: S311 - no secret
    paths = sources(corpus)
    dice.shuffle(paths)
    drawn = list(dict.fromkeys(islice(pairs(paths), documents)))
    dice.shuffle(drawn)
    asked = [(index, drawn[index][0]) for index in range(min(queries, len(drawn)))]
    bodies = [body for _, body in drawn]
    ours, theirs = (hits(bodies, asked, name) for name in ("standard", "regex"))
    ratios: list[float] = []
    for _ in range(ROUNDS):
        sample = [dice.randrange(len(asked)) for _ in asked]
        ratios.append(sum(ours[i] for i in sample) / max(1, sum(theirs[i] for i in sample)))
    low = sorted(ratios)[ROUNDS // 40]
    count = len(asked)
    return sum(ours) / count, sum(theirs) / count, sum(ours) / max(1, sum(theirs)), low


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", choices=["installed", "library"], default="installed")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=300)
    arguments = parser.parse_args()
    ours, theirs, ratio, low = measured(arguments.corpus, arguments.documents, arguments.queries)
    print(
        f"docstring to code, {arguments.queries} queries: hit@10 {ours:.3f}, the reference's "
        f"terms {theirs:.3f}; {ratio:.2f} x, at least {low:.2f} x (95 %)"
    )
