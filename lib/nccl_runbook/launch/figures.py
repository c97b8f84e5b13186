"""Prints what a regular expression catches in the lines of standard input, a JSON object for each match.

A process of its own: an expression that backtracks without end holds Python's lock, and neither a deadline nor a signal ends that.
"""
import json
import re
import sys


def main() -> None:
    figure = re.compile(sys.argv[1])
    for line in sys.stdin:
        for match in figure.finditer(line):
            print(json.dumps(match.groupdict() or {"figure": match[1]}), flush=True)


if __name__ == "__main__":
    main()
