"""The process behind `judge`: answers each line `[label, answer]` with 1 where math-verify finds them equal, else 0.

It is run as a script, so that it needs to import nothing of turngym.
"""

import json
import resource
import sys

from math_verify import parse, verify

COMPARE_S = 2
"""Seconds for each of math-verify's steps: reading the label, reading the answer, comparing."""
MEMORY_BYTES = 4 * 2**30


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("ready", flush=True)
    for line in sys.stdin:
        label, answer = (parse(f"${text}$", parsing_timeout=COMPARE_S) for text in json.loads(line))
        print(int(verify(label, answer, timeout_seconds=COMPARE_S)), flush=True)


if __name__ == "__main__":
    main()
