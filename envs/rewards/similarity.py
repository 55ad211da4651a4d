"""How alike two texts are: the share of word n-grams that they have in common."""

from __future__ import annotations

import re
from itertools import islice

MAX_WORDS = 100_000
"""Words of a text that are looked at."""

_WORD = re.compile(r"\w+|[^\w\s]")


def word_ngrams(text: str, n: int = 3) -> frozenset[tuple[str, ...]]:
    """The runs of `n` words in a text, in lower case; a shorter text is one run. Takes time linear in its length.

    A word is a run of letters, digits and underscores, or any other single character that is no white space.

    >>> sorted(word_ngrams("The answer is 4.", n=3))
    [('answer', 'is', '4'), ('is', '4', '.'), ('the', 'answer', 'is')]
    """
    words = [match[0].casefold() for match in islice(_WORD.finditer(text), MAX_WORDS)]
    if len(words) < n:
        return frozenset([tuple(words)] if words else [])
    return frozenset(zip(*(words[start:] for start in range(n)), strict=False))


def jaccard(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    """How much two sets have in common, `|a & b| / |a | b|`, in [0, 1]; two empty sets are the same.

    Source:
        P. Jaccard, "The distribution of the flora in the alpine zone", 1912,
        https://doi.org/10.1111/j.1469-8137.1912.tb05611.x
    """
    if not a and not b:
        return 1.0
    common = len(a & b)
    return common / (len(a) + len(b) - common)
