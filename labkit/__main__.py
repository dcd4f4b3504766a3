"""The command line: `labkit VERB ...` or `python -m labkit VERB ...`. Each verb is a page in commands/.

Exit status: 0 only when what was asked is true; 1 when it is not (runs differ, a proof fails, a run failed); 2 when it
could not be tried (wrong words, a refusal, with the reason); 3 when a run was stopped before its target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from labkit.commands import artefacts, budget, doctor, proofs, records, review, train
from labkit.errors import LabkitError

_GO_ON = {
    "train": "; `labkit resume` goes on from the last checkpoint",
    "resume": "; `labkit resume` goes on from the last checkpoint",
    "trials": "; the same command goes on from the last checkpoints",
}
PAGES = (train, proofs, records, budget, artefacts, review, doctor)


def parser() -> argparse.ArgumentParser:
    """The parser with every verb."""
    top = argparse.ArgumentParser(
        prog="labkit", description="Train, stop anywhere, continue the same trajectory, and prove it.",
        epilog="Begin with: labkit train digits --run runs/first --updates 200",
    )  # fmt: skip
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for page in PAGES:
        page.add(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status."""
    top = parser()
    asked, rest = top.parse_known_args(records.spelled_out(sys.argv[1:] if arguments is None else arguments))
    if rest and not artefacts.take_inputs(asked, rest):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(asked.run(asked))
    except LabkitError as error:
        print(f"labkit {asked.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"labkit {asked.verb}: interrupted{_GO_ON.get(asked.verb, '')}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; nothing is left to say
        return 1


if __name__ == "__main__":
    sys.exit(main())
